"""The reward `code` in a real sandbox: what passes, what doesn't, and what is no fault of the program's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from toolrl.errors import RewardError
from toolrl.types import Episode, Score
from toolrl_plugin_python.keeper_process import KeeperError
from toolrl_plugin_python.options import CodeOptions
from toolrl_plugin_python.reward import CodeReward
from toolrl_plugin_python.trials import Trials, Verdict
from toolrl_testing import make_build_context, make_episode, make_task

ADD = "def add(a, b):\n    return a + b"
SUM = "print(sum(map(int, input().split())))"
CALLS = {"fn_name": "add", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]}
CHECK = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate([1], [2]) == [1, 2]\n"
Scored = Callable[..., Score]


def an_episode(program: str, answer: Any, **extra: Any) -> Episode:
    return make_episode(f"So:\n```python\n{program}\n```\nDone.", task=make_task(answer=answer, extra=extra))


async def scores(episodes: list[Episode], **options: Any) -> list[Score]:
    """Scores of a reward that is started and stopped."""
    reward = CodeReward(CodeOptions(**options), make_build_context("code"))
    try:
        await reward.start()
        return list(await asyncio.gather(*(reward.score(episode) for episode in episodes)))
    finally:
        await reward.stop()


@pytest.fixture
def scored(any_isolation: str) -> Scored:
    def score(program: str, answer: Any, extra: dict[str, Any] | None = None, **options: Any) -> Score:
        return asyncio.run(scores([an_episode(program, answer, **(extra or {}))], **{"continuous": True, **options}))[0]

    return score


@pytest.mark.parametrize(
    ("program", "answer", "extra", "share"),
    [
        (SUM, {"inputs": ["1 2\n", "3 4"], "outputs": ["3", "7\n"]}, {}, 1.0),
        (SUM, {"inputs": ["1 2\n", "3 4"], "outputs": ["3", "8\n"]}, {}, 0.5),
        (ADD, CALLS, {}, 1.0),
        ("class Solution:\n    def add(self, a: List[int], b: int) -> int:\n        return a + b", CALLS, {}, 1.0),
        (ADD.replace("+", "-"), CALLS, {}, 0.0),
        (ADD, ["assert add(1, 2) == 3", "assert add(1, 2) == 4", "assert add('a', 'b') == 'ab'"], {}, 2 / 3),
        (ADD, CHECK, {"entry_point": "add"}, 1.0),
        (ADD.replace("+", "-"), CHECK, {"entry_point": "add"}, 0.0),
        ("def f(*a, **k):\n    return a, k", ["assert f(1, {2}, b=3.5) == ((1, {2}), {'b': 3.5})"], {}, 1.0),
        ("def sum(a, b):\n    return 6", ["assert sum(10, 15) == 6"], {"entry_point": "sum"}, 1.0),
    ],
)
def test_programs(scored: Scored, program: str, answer: Any, extra: dict[str, Any], share: float) -> None:
    score = scored(program, answer, extra)
    assert score.value == pytest.approx(share)
    assert score.metrics["correct"] == float(share == 1.0)
    assert score.metrics["pass_rate"] == score.value


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("def add(a, b): return 0", "wrong"),
        ("def add(a, b): return 1 / 0", "error"),
        ("def add(a, b): return add", "error"),
        ("def sub(a, b): return 0", "error"),
        ("def add(:", "error"),
        ("raise SystemExit", "error"),
        ("def add(a, b):\n    while True: pass", "timeout"),
        ("def add(a, b): return len(bytearray(1 << 30))", "error"),
        ("def add(a, b): return 'x' * (100 << 20)", "error"),
    ],
)
@pytest.mark.parametrize("answer", [CALLS, ["assert add(1, 2) == 3"]])
def test_why_a_case_failed_is_counted(scored: Scored, program: str, kind: str, answer: Any) -> None:
    score = scored(program, answer, timeout=1)
    assert score.value == 0.0
    shares = {name: share for name, share in score.metrics.items() if name in ("wrong", "error", "timeout", "limit")}
    found = {name for name, share in shares.items() if share}
    # Memory is refused by the allocator or ended by the keeper, as the isolation has it, if there is time for it: each
    # case by itself.
    assert found <= {kind, "limit", "timeout"} if "<<" in program else found == {kind}
    assert found


@pytest.mark.parametrize(
    ("program", "kind"),
    [
        ("import sys\nprint(3)\nsys.exit(1)", "error"),
        ("while True: pass", "timeout"),
        ("while True: print(3)", "limit"),
    ],
)
def test_why_a_whole_program_failed(scored: Scored, program: str, kind: str) -> None:
    assert scored(program, {"inputs": ["1 2"], "outputs": ["3"]}, timeout=1).metrics[kind] == 1.0


def test_all_or_nothing_stops_at_the_first_failure(scored: Scored) -> None:
    many = {"inputs": ["1 2"] * 50, "outputs": ["4"] * 50}
    score = scored(SUM, many, continuous=False, concurrency=1)
    assert score == Score(
        0.0, metrics={"correct": 0.0, "answered": 1.0, "wrong": 1.0, "error": 0.0, "timeout": 0.0, "limit": 0.0}
    )
    assert scored(SUM, {"inputs": ["1 2"] * 3, "outputs": ["3"] * 3}, continuous=False).value == 1.0


def test_only_the_first_cases_are_run(scored: Scored) -> None:
    assert scored(SUM, {"inputs": ["1 2"] * 3, "outputs": ["3", "4", "4"]}, max_cases=1).value == 1.0


def test_where_the_program_is_looked_for(any_isolation: str) -> None:
    task = make_task(answer=CALLS)
    first = make_episode(f"```python\n{ADD}\n```", "There it is.", task=task, answer=ADD)

    def value(**options: Any) -> float:
        return asyncio.run(scores([first], **options))[0].value

    assert [value(), value(judge="all"), value(judge="answer"), value(judge="answer", code="text")] == [0, 1, 0, 1]


def test_packages(scored: Scored) -> None:
    program = "import packaging.version as v\n\ndef f(x): return str(v.Version(x))"
    answer = ["assert f('1.0') == '1.0'"]
    pytest.importorskip("packaging")
    assert scored(program, answer).value == 0.0
    assert scored(program, answer, packages=["packaging"]).value == 1.0


def test_large_values_cross(scored: Scored) -> None:
    program = "def double(x):\n    return [2 * it for it in x]"
    numbers = list(range(100_000))
    assert scored(program, {"fn_name": "double", "inputs": [[numbers]], "outputs": [[2 * it for it in numbers]]}).value


def test_without_isolation_where_that_is_asked_for() -> None:
    episodes = [an_episode(ADD, answer) for answer in (CALLS, ["assert add(1, 2) == 3"])]
    episodes += [an_episode(SUM, {"inputs": ["1 2"], "outputs": ["3"]}), an_episode(SUM, ["assert add(1, 2) == 3"])]
    assert [score.value for score in asyncio.run(scores(episodes, isolation="none"))] == [1.0, 1.0, 1.0, 0.0]


def test_a_sandbox_that_fails_is_no_zero(any_isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def verdict(self: Trials, case: Any, source: str) -> Verdict:
        raise KeeperError("gone")

    monkeypatch.setattr(Trials, "verdict", verdict)
    with pytest.raises(RewardError, match="sandbox couldn't run"):
        asyncio.run(scores([an_episode(ADD, {"inputs": [""], "outputs": [""]})]))


def test_a_dead_keeper_costs_no_score(any_isolation: str) -> None:
    async def run() -> Score:
        reward = CodeReward(CodeOptions(), make_build_context("code"))
        try:
            await reward.start()
            assert reward._trials is not None
            keeper = reward._trials.sandbox._keeper
            assert keeper is not None
            await keeper.stop()
            return await reward.score(an_episode(ADD, CALLS))
        finally:
            await reward.stop()

    assert asyncio.run(run()).value == 1.0


def test_nothing_is_left_behind(any_isolation: str, descriptors: Callable[[], set[str]]) -> None:
    async def run() -> None:
        reward = CodeReward(CodeOptions(timeout=30), make_build_context("code"))
        await reward.start()
        asked = [
            asyncio.ensure_future(reward.score(an_episode("def add(a, b):\n    while True: pass", answer)))
            for answer in (CALLS, ["assert add(1, 2) == 3"], {"inputs": ["1"], "outputs": ["1"]})
        ]
        await asyncio.sleep(0.3)
        for one in asked:
            one.cancel()
        await asyncio.wait(asked)
        assert all(one.cancelled() for one in asked)
        await reward.score(an_episode(ADD, CALLS))
        await reward.stop()
        await asyncio.sleep(0)

    asyncio.run(run())
    before = descriptors()
    asyncio.run(run())
    after = {entry.partition(" ")[2] for entry in descriptors()} - {entry.partition(" ")[2] for entry in before}
    assert not {entry for entry in after if not entry.startswith(("/proc", "/dev"))}
