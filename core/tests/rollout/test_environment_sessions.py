"""Environments: sessions that open, reply and end; routing of tasks; what each environment has of its own."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import DataError
from toolrl.parsing.flags import EndFlags
from toolrl.protocols import EpisodeContext, Reply
from toolrl.rollouts.environment import Environment, Limits, NamedReward, pick_environment
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Message, ParsedTurn, Score, Task, ToolCall, ToolResult, ToolSpec, Turn
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine, make_task


class Caller(FakeParser):
    """`!NAME` at the beginning of a turn is a call."""

    def __init__(self, mark: str = "!") -> None:
        self.mark = mark

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        match = re.match(re.escape(self.mark) + r"(\w+)", text)
        if match is None:
            return ParsedTurn(content=text)
        return ParsedTurn((ToolCall(match[1], {}, span=match.span(), raw=match[0]),), status="calls")


class Shop:
    """A customer who greets, is asked, and leaves; and a till. `respond` may be another."""

    def __init__(
        self,
        respond: Callable[[int, Turn], Any] | None = None,
        opening: Any = (Message("user", "I want tea."),),
        tools: Sequence[str] = (),
        final: float | None = None,
    ) -> None:
        self._respond = respond or (lambda number, turn: Reply((Message("user", "Thanks."),), 0.5, number == 2))
        self._opening = opening
        self._tools = tools
        self._final = final
        self.closed = 0

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Any]:
        shop = self

        class Session:
            replies = 0

            def specs(self) -> Sequence[ToolSpec]:
                return tuple(ToolSpec(name, "A tool.") for name in shop._tools)

            async def opening(self) -> Any:
                return shop._opening

            async def respond(self, turn: Turn) -> Any:
                self.replies += 1
                answer = shop._respond(self.replies, turn)
                return await answer if asyncio.iscoroutine(answer) else answer

            async def call(self, call: ToolCall) -> ToolResult:
                return ToolResult(f"{call.name} rings", reward=0.25)

            async def reward(self) -> float | None:
                return shop._final

        try:
            yield Session()
        finally:
            self.closed += 1


class Judge:
    """A reward of the whole trajectory, with credit for a turn."""

    def __init__(self, value: float, per_turn: dict[int, float] | None = None) -> None:
        self._score = Score(value, per_turn=per_turn or {})

    async def score(self, episode: Episode) -> Score:
        return self._score


def environment(name: str, *toolsets: Any, policy: PolicyOptions | None = None, **fields: Any) -> Environment:
    entries = [ToolEntry(f"{name}{n or ''}", it, policy=policy or PolicyOptions()) for n, it in enumerate(toolsets)]
    return Environment(name, fields.pop("parser", Caller()), FakeChatFormat(), ToolBox(entries), **fields)


def run(
    script: Any, *environments: Environment, tasks: Sequence[Task] = (), group_size: int = 1, errors: float = 1.0
) -> list[Episode]:
    """The episodes of all tasks, in order, played in one batch."""
    runner = Runner(ScriptedEngine(script), {it.name: it for it in environments}, max_error_rate=errors)
    groups = asyncio.run(runner.run(tasks or [make_task()], group_size, Limits(200, 4000), round_id="test"))
    return [episode for group in groups for episode in group.episodes]


def entries(episode: Episode) -> list[tuple[int | None, str, float]]:
    return [(entry.turn, entry.source, entry.weight * entry.value) for entry in episode.rewards]


# Sessions that speak.


def test_a_session_opens_replies_and_ends_the_episode() -> None:
    shop = Shop()
    (episode,) = run(["Green?", "Here."], environment("shop", shop, system_prompt="You sell tea."))
    said = [(message.role, message.content) for message in episode.messages]
    assert said == [
        ("system", "You sell tea."), ("user", "What is 2 + 2?"), ("user", "I want tea."),
        ("assistant", "Green?"), ("user", "Thanks."), ("assistant", "Here."), ("user", "Thanks."),
    ]  # fmt: skip
    assert episode.stop_reason == "tool_done"
    assert entries(episode) == [(0, "step:environment", 0.5), (1, "step:environment", 0.5)]
    sampled = [number for number, bit in zip(episode.ids, episode.loss_mask, strict=True) if bit]
    assert FakeChatFormat().decode(sampled).text == "Green?<|end|>Here."
    assert shop.closed == 1


def test_calls_and_words_in_one_episode() -> None:
    (episode,) = run(["!till", "Here.", "Bye."], environment("shop", Shop(tools=["till"], final=2.0)))
    assert entries(episode) == [
        (0, "step:till", 0.25), (1, "step:environment", 0.5), (2, "step:environment", 0.5), (None, "tool:till", 2.0),
    ]  # fmt: skip
    assert [len(turn.calls) for turn in episode.turns] == [1, 0, 0]


def test_replies_stop_at_max_turns_and_nothing_is_lost() -> None:
    shop = Shop(lambda number, turn: Reply((Message("user", str(number)),), 0.5))
    (episode,) = run(["a", "b", "c"], environment("shop", shop, max_turns=2))
    assert (episode.stop_reason, len(episode.turns)) == ("max_turns", 2)
    assert entries(episode) == [(0, "step:environment", 0.5), (1, "step:environment", 0.5)]


def test_words_between_invalid_calls_begin_the_count_anew() -> None:
    (episode,) = run(["!ghost", "Green?", "!ghost", "Here."], environment("shop", Shop(), max_invalid_turns=2))
    assert (len(episode.turns), episode.stop_reason) == (4, "tool_done")


def test_an_end_flag_comes_before_the_environment() -> None:
    shop = Shop(lambda number, turn: pytest.fail("it was asked"))
    (episode,) = run(["<answer>4</answer>"], environment("shop", shop, end_flags=EndFlags(("answer",))))
    assert (episode.stop_reason, episode.answer) == ("answer", "4")


def test_an_environment_that_never_replies_ends_its_episode() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    shop = Shop(lambda number, turn: never())
    (episode,) = run(["a"], environment("shop", shop, policy=PolicyOptions(session_timeout=0.2)))
    assert episode.failure is not None
    assert "session_timeout" in episode.failure.message
    assert shop.closed == 1


# Routing.


def routed(**columns: Any) -> str:
    known = {key: columns.pop(key) for key in ("environment", "tools") if key in columns}
    environments = {name: environment(name) for name in columns.pop("names", ("vault", "guess"))}
    return pick_environment(environments, make_task(id="row-7", extra=columns, **known)).name


def test_a_task_goes_where_its_columns_say() -> None:
    assert routed(environment="guess") == "guess"
    assert routed(task_type="guess") == "guess"
    assert routed(agent_name="vault") == "vault"
    assert routed(environment="vault", task_type="guess") == "vault"
    assert routed(task_type="guess", agent_name="vault") == "guess"
    assert routed(task_type="other", agent_name="vault") == "vault"
    assert routed(task_type="other", names=("vault", "default")) == "default"
    assert routed(task_type=["vault"], names=("vault",)) == "vault"


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"environment": "gues"}, "task 'row-7' asks for environment 'gues'; the config has: vault, guess"),
        ({}, "task 'row-7' names no environment, and of vault, guess none is called 'default'"),
        ({"task_type": "other"}, "names no environment (its task_type is 'other'), and of vault, guess"),
    ],
)
def test_a_task_that_goes_nowhere_is_named(columns: Any, said: str) -> None:
    with pytest.raises(DataError, match=re.escape(said)):
        routed(**columns)


def test_two_environments_in_one_batch_keep_what_is_their_own() -> None:
    def speak(prompt: str) -> str:
        if "A riddle?" in prompt:
            return "?ring" if "rings" not in prompt else "Four."
        return "!till" if "rings" not in prompt else "Here."

    shop = environment(
        "shop", Shop(tools=["till", "scale"]), rewards=(NamedReward("judge", Judge(1.0), 2.0),), max_turns=2
    )
    riddles = environment(
        "riddles",
        Shop(lambda number, turn: None, (Message("user", "A riddle?"),), ["ring"], final=3.0),
        parser=Caller("?"),
        rewards=(NamedReward("points", Judge(-1.0, {0: 0.5})),),
        call_cost=0.125,
    )
    tasks = [
        make_task(id="a", extra={"task_type": "shop"}, tools=("till",)),
        make_task(id="b", extra={"task_type": "riddles"}),
        make_task(id="c", environment="shop"),
    ]
    episodes = run(speak, shop, riddles, tasks=tasks, group_size=2)
    assert [(it.environment, it.task.id) for it in episodes] == [
        (name, task) for name, task in (("shop", "a"), ("riddles", "b"), ("shop", "c")) for _ in range(2)
    ]
    assert all(it.failure is None for it in episodes)
    sold, _, riddle, _, other, _ = episodes
    assert (sold.stop_reason, riddle.stop_reason) == ("max_turns", "final")
    assert entries(sold) == [(0, "step:till", 0.25), (1, "step:environment", 0.5), (None, "reward:judge", 2.0)]
    assert entries(riddle) == [
        (0, "step:ring", 0.25), (0, "call_cost", -0.125), (None, "tool:ring", 3.0),
        (None, "reward:points", -1.0), (0, "reward:points", 0.5),
    ]  # fmt: skip
    assert riddle.reward == pytest.approx(2.625)
    assert _offered(sold) == ["till"]
    assert _offered(riddle) == ["ring"]
    assert _offered(other) == ["till", "scale"]


def _offered(episode: Episode) -> list[str]:
    """The names of the tools in the prompt."""
    text = FakeChatFormat().decode(episode.ids[: episode.prompt_length]).text
    lines = text.removeprefix("<|system|>").partition("<|end|>")[0].splitlines()
    return [json.loads(line)["function"]["name"] for line in lines]
