"""Reward `math`: what is equal, and that no answer holds up the run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from toolrl.errors import RewardError
from toolrl.types import Score
from toolrl_plugin_math import verifier
from toolrl_plugin_math.math_reward import MathReward
from toolrl_plugin_math.options import MathOptions
from toolrl_testing import make_build_context, make_episode, make_task

CONTEXT = make_build_context()


@pytest.fixture(scope="module")
def reward() -> Iterator[MathReward]:
    made = MathReward(MathOptions(workers=1, timeout=20.0), CONTEXT)
    yield made
    made.close()


def judge(reward: MathReward, answer: Any, *texts: str) -> Score:
    return asyncio.run(reward.score(make_episode(*texts, task=make_task(answer=answer))))


@pytest.mark.parametrize(
    ("answer", "text", "right"),
    [
        ("42", r"so \boxed{42}", True),
        ("42", "The answer is 42.", True),
        ("42", r"\boxed{43}", False),
        ("1/3", r"\boxed{\frac{2}{6}}", True),
        (r"\frac{1}{3}", "$1/3$", True),
        (r"\boxed{7}", "7", True),
        ("0.5", r"$\frac12$", True),
        ("1234", r"\boxed{1,234}", True),
        ("x^2+1", r"\boxed{1+x^2}", True),
        ("x^2+1", r"\boxed{1+x^3}", False),
        ("(1,2)", r"\boxed{(1,2)}", True),
        (4, "$4$", True),
        (["3", "4"], "$4$", True),
        ("2", "", False),
        ("2", r"\frac{" * 500, False),
        ("2", "(" * 3000, False),
        ("2", "\x00\ud800 ¿", False),
    ],
)
def test_equal_is_right(reward: MathReward, answer: Any, text: str, right: bool) -> None:
    score = judge(reward, answer, text)
    assert score.value == float(right)
    assert score.metrics["correct"] == float(right)
    assert score.metrics["timeout"] == 0.0


def test_only_a_box_counts_where_the_option_says_so() -> None:
    boxed = MathReward(MathOptions(boxed=True, workers=1), CONTEXT)
    assert judge(boxed, "42", "The answer is 42.").metrics == {"correct": 0.0, "answered": 0.0, "timeout": 0.0}
    assert judge(boxed, "42", r"\boxed{42}").value == 1.0
    boxed.close()


@pytest.mark.parametrize("answer", [None, "", []])
def test_an_answer_that_cannot_be_read_is_an_error(reward: MathReward, answer: Any) -> None:
    with pytest.raises(RewardError, match="task-0"):
        judge(reward, answer, r"\boxed{42}")


def test_many_at_once_and_the_loop_goes_on() -> None:
    made = MathReward(MathOptions(workers=2), CONTEXT)

    async def run() -> tuple[list[float], int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        episodes = [make_episode(f"\\boxed{{{n % 3}}}", task=make_task(answer="1")) for n in range(30)]
        scores = await asyncio.gather(*(made.score(episode) for episode in episodes))
        ticking.cancel()
        return [score.value for score in scores], ticks

    values, ticks = asyncio.run(run())
    made.close()
    assert values == [float(n % 3 == 1) for n in range(30)]
    assert ticks > 1


@pytest.mark.parametrize("text", [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{\sum_{n=1}^{10000000000} \frac{1}{n^{2.5}}}"])
def test_an_answer_without_end_is_wrong_and_the_next_is_judged(text: str) -> None:
    made = MathReward(MathOptions(workers=1, timeout=0.3), CONTEXT)
    judge(made, "2", r"\boxed{2}")  # the first question loads more of sympy
    score = judge(made, "2", text)
    assert score.metrics == {"correct": 0.0, "answered": 1.0, "timeout": 1.0}
    made.close()
    later = MathReward(MathOptions(workers=1, timeout=20.0), CONTEXT)
    assert judge(later, "2", r"\boxed{2}").value == 1.0
    later.close()


def test_a_worker_beyond_its_deadline_is_killed_and_replaced() -> None:
    worker = verifier.worker()
    assert verifier.judge(worker, ["1"], "1", 20.0) == "right"
    assert worker._worker is not None
    first = worker._worker._process
    assert first is not None
    assert verifier.judge(worker, ["1"], r"\boxed{9^{9^{9^{9}}}}", 0.2) == "timeout"
    assert first.poll() is not None
    assert verifier.judge(worker, ["1"], "1", 20.0) == "right"
    worker.close()
    worker.close()


def test_without_math_verify_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    (tmp_path / "math_verify.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RewardError, match="can't be started: ImportError: not here"):
        verifier.judge(verifier.worker(), ["1"], "1", 20.0)
