"""Tools to which the model submits an answer, as often as it likes, and reads its score: `calc_gsm8k_reward`.

The ground truth comes from the task's `tools_kwargs.NAME.create_kwargs.ground_truth`, which the data sets fill in. A
call whose answer is worth no more than the last one costs `penalty`; the last answer's worth is the tool's own reward
at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from toolrl.errors import ToolsetError
from toolrl.protocols import BuildContext
from toolrl.tools import Tool
from toolrl.types import ToolResult, ToolSpec
from toolrl_plugin_math.options import RewardToolOptions
from toolrl_plugin_math.quantity import stated_number, true_number

NAME = "calc_gsm8k_reward"


def answer_spec(name: str, description: str, answer: str) -> ToolSpec:
    """The spec of a tool that takes an answer."""
    properties = {"answer": {"type": "string", "description": answer}}
    return ToolSpec(name, description, {"type": "object", "properties": properties, "required": ["answer"]})


class AnswerTool(Tool):
    """One submitted answer an episode, which each call replaces. The options of a subclass have a `penalty`."""

    def __init__(self, options: Any, context: BuildContext | None = None) -> None:
        super().__init__(options, context)
        self._golds: dict[str, Any] = {}
        self._rewards: dict[str, float] = {}

    @abstractmethod
    def gold(self, ground_truth: Any) -> Any:
        """What answers are compared with; None where the ground truth holds nothing."""

    @abstractmethod
    async def is_right(self, answer: str, gold: Any) -> bool:
        """Whether an answer is right."""

    def shown(self, answer: str) -> str:
        """What the model reads as its answer."""
        return answer

    async def create(self, instance_id: str, ground_truth: Any = None, **create_kwargs: Any) -> None:
        """Raises ToolsetError for a task without a ground truth that answers can be compared with."""
        assert self.spec is not None
        gold = None if ground_truth is None else self.gold(ground_truth)
        if gold is None:
            raise ToolsetError(
                f"the task gives {ground_truth!r:.80} as ground_truth, which holds no answer",
                where=self.spec.name,
                hint=f"Each task needs tools_kwargs: {{{self.spec.name}: {{create_kwargs: {{ground_truth: …}}}}}}.",
            )
        self._golds[instance_id] = gold
        self._rewards[instance_id] = 0.0

    async def execute(self, instance_id: str, parameters: Any, **execute_kwargs: Any) -> ToolResult:
        """The worth of an answer, and a step reward of −penalty where it is no better than the last."""
        answer = str(parameters.get("answer", ""))
        reward = float(await self.is_right(answer, self._golds[instance_id]))
        better = reward > self._rewards[instance_id]
        self._rewards[instance_id] = reward
        text = f"Current parsed answer={self.shown(answer)!r} reward={reward}"
        return ToolResult(text, reward=0.0 if better else -self.options.penalty)

    async def calc_reward(self, instance_id: str, **calc_reward_kwargs: Any) -> float:
        """The worth of the last answer; 0.0 where there was none."""
        return self._rewards[instance_id]

    async def release(self, instance_id: str, **release_kwargs: Any) -> None:
        """Forget the episode."""
        self._golds.pop(instance_id, None)
        self._rewards.pop(instance_id, None)


class Gsm8kRewardTool(AnswerTool):
    """The number after the last `####` counts, else the last number of the submitted text."""

    spec = answer_spec(
        NAME,
        "Checks an answer to the problem. The reward is 1.0 if the answer is correct, and 0.0 if it is not or if no "
        "number can be read from it.",
        "The answer, a number in digits.",
    )

    def __init__(self, options: RewardToolOptions | None, context: BuildContext | None = None) -> None:
        super().__init__(options or RewardToolOptions(), context)

    def gold(self, ground_truth: Any) -> Any:
        return true_number(ground_truth)

    async def is_right(self, answer: str, gold: Any) -> bool:
        return bool(stated_number(answer) == gold)
