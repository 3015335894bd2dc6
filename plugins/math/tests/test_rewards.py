"""Rewards `exact` and `gsm8k`, and how they read numbers."""

from __future__ import annotations

import asyncio
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import RewardError
from toolrl.types import CallRecord, Score, ToolCall, ToolResult
from toolrl_plugin_math.options import ExactOptions, Gsm8kRewardOptions
from toolrl_plugin_math.quantity import last_number, marked_number
from toolrl_plugin_math.rewards import ExactReward, Gsm8kReward
from toolrl_plugin_math.stated import stated_answer
from toolrl_testing import make_build_context, make_episode, make_task

CONTEXT = make_build_context()


def exact(answer: Any, *texts: str, said: str | None = None, **options: Any) -> Score:
    episode = make_episode(*texts, task=make_task(answer=answer), answer=said)
    return asyncio.run(ExactReward(ExactOptions(**options), CONTEXT).score(episode))


def gsm8k(answer: Any, *texts: str, **options: Any) -> Score:
    episode = make_episode(*texts, task=make_task(answer=answer))
    return asyncio.run(Gsm8kReward(Gsm8kRewardOptions(**options), CONTEXT).score(episode))


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("42", 42),
            ("−42", -42),
            ("3.50", Fraction(7, 2)),
            (".5", Fraction(1, 2)),
            ("220000.0", 220000),
            ("1,234", 1234),
            ("$1,234,567.25", Fraction(123456725, 100)),
            ("-$5", -5),
            ("15%", 15),
            ("The answer is 18.", 18),
            ("16-3", 3),
            ("x = -3", -3),
            ("(2)-3", 3),
            ("1,23", 23),
            ("1,2345", 2345),
            ("no number", None),
            ("", None),
            ("9" * 5000, None),
        ],
    )
    def test_the_last_number_of_a_text(self, text: str, value: Fraction | int | None) -> None:
        assert last_number(text) == value

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("so 5\n#### 18", 18),
            ("#### 1\n#### 2", 2),
            ("#### **$1,000**", 1000),
            ("####\n7", 7),
            ("#### 5 apples and 7 pears", None),
            ("#### about\n7", None),
            ("#### ", None),
            ("18", None),
        ],
    )
    def test_the_number_after_the_mark(self, text: str, value: int | None) -> None:
        assert marked_number(text) == value

    @pytest.mark.parametrize(
        "text",
        [
            "9" * 200_000 + ",9",
            "111," * 50_000 + "1111",
            "#### " * 50_000,
            "#### a\n" * 50_000,
            "1/" * 100_000,
            "1 " * 100_000,
        ],
    )
    def test_a_long_text_is_read_in_linear_time(self, text: str) -> None:
        assert marked_number(text) is None
        assert last_number(f"{text} then 7") == 7
        assert stated_answer("\\boxed{" * 20_000 + text) is not None
        assert stated_answer("final answer is " * 20_000 + text) is not None

    @settings(deadline=None)
    @given(st.integers(-(10**12), 10**12), st.sampled_from(["{}", "{:,}", "{}.0", "{:,}.00", "so {}.", "= {} %"]))
    def test_however_it_is_written(self, value: int, form: str) -> None:
        assert last_number(form.format(value)) == value


class TestGsm8k:
    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("5 * 3 = 15\n#### 18", 1.0),
            ("#### $18.00 per day", 1.0),
            ("The answer is 18.", 0.0),
            ("", 0.0),
        ],
    )
    def test_strict_wants_the_mark(self, text: str, value: float) -> None:
        score = gsm8k("18", text)
        assert score.value == value
        assert score.metrics["correct"] == value

    def test_flexible_takes_the_last_number_without_a_mark(self) -> None:
        assert gsm8k("18", "First 5, then 18.", method="flexible").value == 1.0
        assert gsm8k("18", "18 is right, not 5", method="flexible").value == 0.0
        assert gsm8k("18", "#### 18 or rather 5", method="flexible").value == 0.0

    def test_values_and_format_score(self) -> None:
        options = {"correct": 2.0, "wrong": -1.0, "format_score": 0.1}
        assert gsm8k("18", "#### 18", **options).value == 2.0
        assert gsm8k("18", "#### 5", **options).value == 0.1
        assert gsm8k("18", "18", **options).value == -1.0
        assert gsm8k("18", "#### 5", wrong=-1.0).value == -1.0
        assert gsm8k("18", "#### 5", **options).metrics == {"correct": 0.0, "answered": 1.0}
        assert gsm8k("18", "?", **options).metrics == {"correct": 0.0, "answered": 0.0}

    def test_the_truth_may_be_a_number_or_a_solution(self) -> None:
        for answer in (18, 18.0, "18", "$18", "16 + 2 = 18\n#### 18"):
            assert gsm8k(answer, "#### 18").value == 1.0

    @pytest.mark.parametrize("answer", [None, "unknown", "####"])
    def test_a_task_without_a_number_is_an_error(self, answer: Any) -> None:
        with pytest.raises(RewardError, match="task-0"):
            gsm8k(answer, "#### 18")

    def test_what_a_tool_wrote_never_counts(self) -> None:
        record = CallRecord(ToolCall("lookup", {}), ToolResult("#### 18"))
        episode = make_episode("Let me see.", "Done.", task=make_task(answer="18"), calls={0: [record]})
        for judge in ("final", "all", "answer"):
            reward = Gsm8kReward(Gsm8kRewardOptions(judge=judge, method="flexible"), CONTEXT)
            assert asyncio.run(reward.score(episode)).value == 0.0


class TestExact:
    @pytest.mark.parametrize(
        ("answer", "text", "options", "value"),
        [
            ("Paris", "Paris", {}, 1.0),
            ("Paris", " paris\n", {}, 1.0),
            ("Paris", "paris", {"ignore_case": False}, 0.0),
            ("New  York", "New York", {"ignore_case": False}, 1.0),
            ("408", "It is 408", {}, 0.0),
            ("408", "", {}, 0.0),
            (408, "408", {}, 1.0),
            (["NYC", "New York"], "new york", {}, 1.0),
            (["NYC"], "Paris", {}, 0.0),
            ("café", "cafe\u0301", {}, 1.0),
            ("1", "1", {"correct": 0.5}, 0.5),
            ("408", "408", {"judge": "answer"}, 0.0),
        ],
    )
    def test_the_text_is_the_answer_but_for_white_space_and_case(
        self, answer: Any, text: str, options: dict[str, Any], value: float
    ) -> None:
        score = exact(answer, text, **options)
        assert (score.value, score.metrics) == (value, {"correct": float(value > 0)})

    def test_only_the_final_turn_or_the_end_flags_answer_counts(self) -> None:
        assert exact("408", "12 * 34", "408").value == 1.0
        assert exact("408", "408", "Good day.").value == 0.0
        assert exact("408", "so <answer>408</answer>", said="408", judge="answer").value == 1.0

    @pytest.mark.parametrize("answer", [None, [], [None]])
    def test_a_task_without_answer_is_an_error(self, answer: Any) -> None:
        with pytest.raises(RewardError, match="no answer"):
            exact(answer, "x")
