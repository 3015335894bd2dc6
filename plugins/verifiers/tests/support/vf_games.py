"""Environments as users of verifiers write them: a question, a tool, tools with state, a game."""

from __future__ import annotations

from typing import Any

import verifiers as vf
from datasets import Dataset


def calculator(expression: str) -> int:
    """Add numbers.

    Args:
        expression: Such as 2 + 2.
    """
    return sum(int(part) for part in expression.split("+"))


async def right(completion: Any, answer: str) -> float:
    """Whether the last message holds the answer."""
    return float(answer in str(completion[-1]["content"]))


async def short(completion: Any) -> float:
    """Less for each message."""
    return 1.0 / len(completion)


class Basket(vf.StatefulToolEnv):
    """Things go into the basket of one rollout, which the model can't name."""

    def __init__(self, **more: Any) -> None:
        super().__init__(tools=[], **more)
        self.add_tool(self.put, args_to_skip=["basket"])

    async def setup_state(self, state: vf.State) -> vf.State:
        state["basket"] = []
        return await super().setup_state(state) or state

    def update_tool_args(self, tool_name: str, tool_args: dict, messages: Any, state: vf.State, **more: Any) -> dict:
        return {**tool_args, "basket": state["basket"]}

    async def put(self, thing: str, basket: list) -> str:
        """Put a thing into the basket.

        Args:
            thing: What.
        """
        basket.append(thing)
        return f"In it: {', '.join(basket)}."


class Guess(vf.MultiTurnEnv):
    """The model guesses a number, and is told the direction."""

    async def env_response(self, messages: vf.Messages, state: vf.State, **more: Any) -> vf.Messages:
        said, wanted = str(messages[-1].content).strip(), int(state["answer"])
        if not said.isdigit():
            return [vf.UserMessage(content="Say a number.")]
        if int(said) == wanted:
            state["final_env_response"] = [vf.UserMessage(content=f"Yes, {wanted}.")]
            return state["final_env_response"]
        return [vf.UserMessage(content="Higher." if int(said) < wanted else "Lower.")]


def load_environment(
    kind: str = "question", group: bool = False, key: str = "", size: int = 4, system: bool = True
) -> vf.Environment:
    """One of the four."""
    if key:
        vf.ensure_keys([key])
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(1, size + 1)]
    rubric = vf.Rubric(funcs=[right, short], weights=[1.0, 0.25])
    if group:

        async def longest(completions: list) -> list[float]:
            return [float(len(it)) for it in completions]

        rubric.add_reward_func(longest)
    given: dict[str, Any] = {
        "dataset": Dataset.from_list(rows),
        "rubric": rubric,
        "system_prompt": "Answer shortly." if system else None,
    }
    if kind == "tool":
        return vf.ToolEnv(tools=[calculator], max_turns=4, **given)
    if kind == "state":

        async def full(state: vf.State) -> float:
            return float(len(state["basket"]))

        rubric.add_reward_func(full, 0.5)
        return Basket(max_turns=4, **given)
    if kind == "game":
        return Guess(max_turns=4, **given)
    return vf.SingleTurnEnv(**given)
