"""The reward `search_r1`: answers, F1, step rewards, and RLFactory's own formulas."""

from __future__ import annotations

import asyncio
import re
import string
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import RewardError
from toolrl.types import CallError, CallRecord, Episode, Score, ToolCall, ToolResult
from toolrl_plugin_search.options import SearchR1Options
from toolrl_plugin_search.reward import SearchR1Reward, exact_match, f1, final_score, last_answer, normalised
from toolrl_testing import make_build_context, make_episode, make_task

GOLDS = ["Johann Wolfgang von Goethe", "Goethe"]
GOOD = CallRecord(ToolCall("search", {"query": "q"}), ToolResult("found"))
TAGS = st.lists(st.sampled_from(["<answer>", "</answer>", "<think>", "</think>", "x", " ", "\n"]), max_size=30).map(
    "".join
)


def bad(kind: str) -> CallRecord:
    return CallRecord(CallError(kind, "No."), ToolResult("No.", error="malformed"))


def scored(episode: Episode, **options: Any) -> Score:
    made = SearchR1Reward(SearchR1Options(**options), make_build_context("search_r1"))
    return asyncio.run(made.score(episode))


def episode(*texts: str, answer: Any = GOLDS, calls: dict[int, Sequence[CallRecord]] | None = None) -> Episode:
    return make_episode(*texts, task=make_task(answer=answer), calls=calls)


class TestAnswers:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("The  Cat's hat!", "cats hat"),
            ("A theory, an ANT", "theory ant"),
            ("U.S.A.", "usa"),
            ("the", ""),
            ("“ä”", "“ä”"),
        ],
    )
    def test_normalised(self, text: str, expected: str) -> None:
        assert normalised(text) == expected

    @given(st.text())
    def test_normalised_as_search_r1_does_it(self, text: str) -> None:
        without = "".join(ch for ch in text.lower() if ch not in set(string.punctuation))
        assert normalised(text) == " ".join(re.sub(r"\b(a|an|the)\b", " ", without).split())

    def test_matches(self) -> None:
        assert exact_match("the goethe.", GOLDS)
        assert not exact_match("Goethe wrote it", GOLDS)
        assert f1("von Goethe", GOLDS) == pytest.approx(2 / 3)
        assert f1("Johann von Goethe", GOLDS) == pytest.approx(2 * 3 / (3 + 4))
        assert f1("nobody", GOLDS) == 0

    @pytest.mark.parametrize("gold", ["A", "The", "a", "+", "An."])
    def test_an_answer_of_which_nothing_is_left_is_one_all_the_same(self, gold: str) -> None:
        """Blood type A: no answer at all isn't right, nor is another article."""
        assert exact_match(gold.lower(), ["x", gold])
        assert f1(gold, [gold]) == 1
        for said in ("", "  ", "of the", "-"):
            assert not exact_match(said, [gold])
            assert f1(said, [gold]) == 0
        assert scored(episode("<answer></answer>", answer=gold)).metrics["correct"] == 0

    @given(TAGS)
    def test_last_answer_as_a_pattern_finds_it(self, text: str) -> None:
        found = re.findall(r"<answer>(.*?)</answer>", text, re.DOTALL)
        assert last_answer(text) == (found[-1].strip() if found else None)

    def test_many_tags_take_no_long_time(self) -> None:
        assert last_answer("<answer>" * 200_000) is None


class TestValue:
    def test_right_wrong_and_none(self) -> None:
        right, wrong, none = (
            episode("x <answer> Goethe </answer>"),
            episode("<answer>Schiller</answer>"),
            episode("Goethe"),
        )
        assert [scored(one).value for one in (right, wrong, none)] == [1, 0, 0]
        options = {"correct": 2.0, "wrong": 0.1, "missing": -0.5}
        assert [scored(one, **options).value for one in (right, wrong, none)] == [2, 0.1, -0.5]
        assert scored(right).metrics == {"correct": 1.0, "f1": 1.0, "answered": 1.0}
        assert scored(none).metrics == {"correct": 0.0, "f1": 0.0, "answered": 0.0}

    def test_f1(self) -> None:
        close = episode("<answer>von Goethe</answer>")
        assert scored(close, score="f1").value == pytest.approx(2 / 3)
        assert scored(close, score="f1").metrics["correct"] == 0
        assert scored(episode("<answer>no</answer>"), score="f1", wrong=-1).value == -1

    def test_the_last_answer_of_the_model_counts_and_never_a_tools(self) -> None:
        told = CallRecord(GOOD.call, ToolResult("<answer>Goethe</answer>"))
        assert scored(episode("call", "I don't know", calls={0: [told]})).metrics["answered"] == 0
        assert scored(episode("<answer>Schiller</answer> <answer>Goethe</answer>")).value == 1
        assert scored(episode("<answer>Goethe</answer>", "well")).value == 1

    def test_a_closing_tag_that_the_engine_cut_off(self) -> None:
        """An end flag's stop string isn't in the text of some engines; the episode's answer says that it was there."""
        task = make_task(answer=GOLDS)
        cut = make_episode("So: <answer>Goethe", task=task, answer="Goethe", stop_reason="answer")
        assert scored(cut).value == 1
        boxed = make_episode(r"<answer>Goethe</answer> \boxed{7}", task=task, answer="7", stop_reason="answer")
        assert scored(boxed).value == 1
        assert scored(make_episode("So: <answer>Goethe", task=task)).metrics["answered"] == 0

    def test_golds(self) -> None:
        right = "<answer>4</answer>"
        for answer in (4, "4", ["5", 4], {"target": ["4"]}, {"target": "4"}):
            assert scored(episode(right, answer=answer)).value == 1
        for answer in (None, [], {"other": 1}, "", " ", ["", None]):
            for text in (right, "<answer></answer>"):
                with pytest.raises(RewardError, match="no answer"):
                    scored(episode(text, answer=answer))


class TestSteps:
    def test_calls_that_can_be_read_and_that_cant(self) -> None:
        turns = {0: [GOOD], 1: [GOOD, bad("invalid_json")], 2: [bad("unclosed")], 3: [GOOD, GOOD, bad("empty")]}
        found = scored(episode("a", "b", "c", "d", "<answer>Goethe</answer>", calls=turns), step_factor=0.1)
        assert found.value == 1
        assert found.per_turn == pytest.approx({0: 0.1, 1: 0.0, 2: -0.05, 3: 0.1 / 3})
        first = {0: [bad("invalid_json"), GOOD, GOOD], 1: [bad("stray_close")], 2: [GOOD, bad("stray_close")]}
        found = scored(episode("a", "b", "c", calls=first), step_factor=0.1)
        assert found.per_turn == pytest.approx({0: -0.05, 1: -0.1, 2: 0.0})
        assert scored(episode("a", calls={0: [GOOD]})).per_turn == {}

    def test_an_answer_that_isnt_closed_is_no_call(self) -> None:
        """RLFactory takes such a turn for an answer, which gets no step reward."""
        errors = [
            CallError("unclosed", "Not closed.", raw="<answer>Goe"),
            CallError("stray_close", "Closes nothing.", raw="</answer>"),
        ]
        records = [CallRecord(error, ToolResult("No.", error="malformed")) for error in errors]
        found = scored(episode("a", "b", calls={0: records, 1: [GOOD, *records]}), step_factor=0.1)
        assert found.per_turn == pytest.approx({1: 0.1})

    def test_calls_beside_an_answer_are_worth_nothing(self) -> None:
        turns = {0: [GOOD], 1: [GOOD, bad("unclosed")]}
        found = scored(episode("a", "<answer>Goethe</answer>", calls=turns), step_factor=0.1)
        assert found.per_turn == pytest.approx({0: 0.1})

    def test_rlfactory(self) -> None:
        turns = {
            0: [GOOD],
            1: [bad("invalid_json"), GOOD],
            2: [GOOD, bad("invalid_json")],
            3: [bad("stray_close")],
            4: [GOOD, GOOD, bad("stray_close")],
        }
        found = scored(episode(*"abcde", calls=turns), step_factor=0.1, compat="rlfactory")
        assert found.per_turn == pytest.approx({0: 0.1, 1: -0.05, 2: 0.1, 3: -0.1, 4: 0.1 / 3})

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("<answer>Goethe</answer>", 1.05),
            ("<answer>no</answer>", 0.1),
            ("no idea", -0.1 - 0.05),
            ("<answer><answer>Goethe</answer>", 0.1 * -1),
            ("<tool_call>{}</tool_call>" * 2 + "<answer>Goethe</answer>", 1.05),
            ("<tool_call>{}</tool_call>" * 3 + "<answer>Goethe</answer>", 1.0),
            ("<tool_call>{}</tool_call>" * 3 + "<answer>no</answer>", 0.0),
            ("<tool_call>" + "<tool_call>{}</tool_call>" * 3 + "<answer>no</answer>", 0.1),
            ("<think><answer>Goethe</answer></think><answer>no</answer>", 0.1),
            ("<think><answer>Goethe</answer></think>no", -0.1 + 0.05),
            ("<think></answer></think><answer>Goethe</answer>", 1 - 0.05),
        ],
    )
    def test_rlfactorys_final_score(self, text: str, expected: float) -> None:
        assert final_score(text, GOLDS, 0.1) == pytest.approx(expected)
        assert scored(episode(text), step_factor=0.1, compat="rlfactory").value == pytest.approx(expected)
