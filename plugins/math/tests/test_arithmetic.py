"""Data sets `arithmetic` and `arithmetic_demos`."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import pytest
from pydantic import ValidationError

from toolrl.protocols import iterate
from toolrl.types import Message, ToolCall
from toolrl_plugin_math.arithmetic import Arithmetic, ArithmeticDemonstrations, ArithmeticProblem
from toolrl_plugin_math.options import KINDS, ArithmeticOptions, DemonstrationOptions
from toolrl_testing import make_build_context

CONTEXT = make_build_context()


def tasks(**options: Any) -> Arithmetic:
    return Arithmetic(ArithmeticOptions(**options), CONTEXT)


def demos(**options: Any) -> ArithmeticDemonstrations:
    given = {"no_tool_environment": "no_tools", "size": 2000, **options}
    return ArithmeticDemonstrations(DemonstrationOptions.model_validate(given), CONTEXT)


@pytest.mark.parametrize("split", ["train", "heldout"])
def test_the_answer_is_the_value_of_the_expression(split: str) -> None:
    for task in iterate(tasks(split=split, size=500)):
        expression = task.extra["expression"]
        assert set(expression) <= set("0123456789 +*")
        assert task.answer == str(eval(expression))
        if task.extra["kind"] != "word":
            assert task.messages == (Message("user", f"What is {expression}?"),)
        else:
            numbers = [word for word in task.messages[0].content.split() if word.isdigit()]
            assert numbers == expression.replace("*", " ").replace("+", " ").split()


def test_kinds_are_uniform_and_of_their_size() -> None:
    counts = Counter(task.extra["kind"] for task in iterate(tasks(size=6000)))
    assert set(counts) == set(KINDS)
    assert all(850 < count < 1150 for count in counts.values())
    digits = {"tiny_sum": [1, 1], "sum": [3, 3], "product": [2, 2], "long_product": [3, 2], "multiply_add": [2, 2, 2]}
    for kind, lengths in digits.items():
        for task in iterate(tasks(kinds=[kind], size=100)):
            operands = task.extra["expression"].replace("*", "+").split(" + ")
            assert [len(operand) for operand in operands] == lengths


def test_a_task_is_a_function_of_seed_and_index() -> None:
    source = tasks(size=50, seed=3)
    copy = pickle.loads(pickle.dumps(source))
    assert [copy[index] for index in reversed(range(50))] == [source[index] for index in reversed(range(50))]
    assert list(iterate(tasks(size=10, seed=3))) == list(iterate(source))[:10]
    assert tasks(size=50, seed=4)[0].messages != source[0].messages or tasks(seed=4)[1].messages != source[1].messages
    assert len({task.id for task in iterate(source)}) == 50
    for index in (-1, 50):
        with pytest.raises(IndexError):
            source[index]


def test_this_task_never_changes() -> None:
    """Figures and resumed runs refer to tasks by seed and index: a change of the generator is a change of the data."""
    assert [task.extra["expression"] for task in iterate(tasks(size=6))] == [
        "64 * 66",
        "307 + 602",
        "13 * 58 + 31",
        "55 * 15 + 70",
        "5 + 3",
        "839 * 15",
    ]
    assert [task.extra["expression"] for task in iterate(tasks(size=6, split="heldout", seed=1))] == [
        "328 * 36",
        "25 * 14 + 21",
        "74 * 61 + 36",
        "11 * 25 + 52",
        "95 * 33 + 82",
        "936 + 283",
    ]


def test_splits_are_disjoint_whatever_the_kind_seed_and_order() -> None:
    def keys(split: str, seed: int) -> set[tuple[str, ...]]:
        source = tasks(split=split, seed=seed, size=3000)
        return {tuple(sorted(task.extra["expression"].split(" + ")[0].split(" * "))) for task in iterate(source)
                if task.extra["kind"] in ("product", "long_product")}  # fmt: skip

    assert not keys("train", 0) & keys("heldout", 1)
    assert ArithmeticProblem("product", (12, 34)).held_out == ArithmeticProblem("product", (34, 12)).held_out
    assert ArithmeticProblem("word", (12, 34, 5)).held_out == ArithmeticProblem("multiply_add", (34, 12, 5)).held_out


def test_environment_and_kinds() -> None:
    assert tasks(kinds=["product"], environment="calc")[0].environment == "calc"
    weighted = tasks(kinds=["sum", "sum", "product"], size=600)
    assert 350 < sum(task.extra["kind"] == "sum" for task in iterate(weighted)) < 450
    with pytest.raises(ValidationError):
        ArithmeticOptions(kinds=[])
    with pytest.raises(ValidationError):
        ArithmeticOptions(kinds=["division"])  # type: ignore[list-item]


class TestDemonstrations:
    def test_a_call_copies_the_expression_and_the_answer_copies_the_result(self) -> None:
        for task in iterate(demos(no_tool_share=0.0, call_share=1.0, size=300)):
            question, call, result, answer = task.messages
            assert question.role == "user"
            assert call == Message(
                "assistant", tool_calls=(ToolCall("calculator", {"expression": task.extra["expression"]}),)
            )
            assert result == Message("tool", answer.content, name="calculator")
            assert answer.role == "assistant"
            if not task.extra["random_result"]:
                assert answer.content == task.answer

    def test_shares(self) -> None:
        found = list(iterate(demos(environment="calc")))
        without = [task for task in found if task.environment == "no_tools"]
        rest = [task for task in found if task.environment == "calc"]
        assert len(without) + len(rest) == len(found)
        assert 0.16 < len(without) / len(found) < 0.24
        assert not any(task.extra["calls"] for task in without)
        calls = [task for task in rest if task.extra["calls"]]
        assert 0.86 < len(calls) / len(rest) < 0.94
        assert 0.45 < sum(task.extra["random_result"] for task in calls) / len(calls) < 0.55

    def test_the_same_seed_gives_the_same_problems_as_without_turns(self) -> None:
        plain, shown = tasks(size=20, seed=5), demos(size=20, seed=5)
        assert [task.messages[0] for task in iterate(plain)] == [task.messages[0] for task in iterate(shown)]

    def test_an_environment_without_tools_has_to_be_named(self) -> None:
        with pytest.raises(ValidationError, match="no_tool_environment"):
            DemonstrationOptions()
        assert DemonstrationOptions(no_tool_share=0.0).no_tool_environment is None

    def test_a_true_result_is_what_the_calculator_answers(self) -> None:
        evaluate = pytest.importorskip("toolrl_plugin_calculator.evaluate").ExpressionEvaluator()
        for task in iterate(demos(random_result_share=0.0, no_tool_share=0.0, call_share=1.0, size=300)):
            _, call, result, _ = task.messages
            assert evaluate(call.tool_calls[0].arguments["expression"]) == result.content
