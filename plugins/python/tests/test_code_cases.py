"""Test cases in the shapes that data sets have, programs in texts, and what counts as the expected output."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import DataError
from toolrl_plugin_python.cases import AssertCase, CallCase, Case, OutputCase, read_cases
from toolrl_plugin_python.fences import runnable, solution
from toolrl_plugin_python.trial_child import LONGEST_ITERATOR, decode, encode
from toolrl_plugin_python.trials import same_output, same_value
from toolrl_testing import make_task


def cases(answer: Any, **extra: Any) -> list[Case]:
    return read_cases(make_task(answer=answer, extra=extra), None)


# Shapes.


@pytest.mark.parametrize("given", [{"inputs": ["1\n", ["2", "3"]], "outputs": ["1", "6"]}])
@pytest.mark.parametrize("as_text", [False, True])
def test_inputs_and_outputs(given: Any, as_text: bool) -> None:
    found = cases(json.dumps(given) if as_text else given)
    assert found == [OutputCase("1\n", "1"), OutputCase("2\n3", "6")]


def test_case_by_case() -> None:
    found = cases({"test_cases": [{"input": "1", "output": "2", "type": "stdin_stdout", "fn_name": None}]})
    assert found == [OutputCase("1", "2")]
    assert cases([{"input": "[1]\n2", "output": "[3]", "fn_name": "f"}]) == [CallCase("f", ([1], 2), ([3],))]


def test_calls_with_values_and_with_texts() -> None:
    found = cases({"fn_name": "f", "inputs": [[1, "a"], '[1, 2]\n"b"'], "outputs": [[5], "true"]})
    assert found == [CallCase("f", (1, "a"), ([5], 5)), CallCase("f", ([1, 2], "b"), (True,))]


def test_a_check_in_a_list_is_called_too_unless_it_is_already() -> None:
    check = "def check(candidate):\n    assert candidate(1) == 2"
    (found,) = cases([check], entry_point="f")
    assert isinstance(found, AssertCase)
    assert found.test.endswith("\ncheck(f)")
    (found,) = cases([f"{check}\ncheck(f)"], entry_point="f")
    assert isinstance(found, AssertCase)
    assert found.test.count("check(f)") == 1
    with pytest.raises(DataError, match="entry_point"):
        cases([check])


def test_a_test_that_is_nested_too_deeply_is_the_rows_fault() -> None:
    with pytest.raises(DataError, match="test cases"):
        cases(["assert f(1) == " + "+".join(["1"] * 5000)])


@pytest.mark.parametrize("line", ["~" * 20_000 + "`", "```" + " " * 20_000 + "`", " " * 20_000 + "`", "`" * 20_000])
def test_a_long_line_of_fences_is_read_at_once(line: str) -> None:
    assert solution(f"```python\nx = 1\n```\n{line}") == "x = 1"


def test_a_field_of_the_row_and_what_stands_beside_it() -> None:
    row = {"tests": {"inputs": [[1]], "outputs": [2]}, "fn_name": "f"}
    assert read_cases(make_task(answer="unused", extra=row), "tests") == [CallCase("f", (1,), (2,))]


def test_asserts_each_are_a_case() -> None:
    found = cases(["assert add(1, 2) == 3", "assert math.isclose(half(3), 1.5)"])
    assert [it.names for it in found if isinstance(it, AssertCase)] == [("add",), ("half",)]
    found = cases({"test_list": ["assert f(x) == 1"], "test_setup_code": "x = 3", "test_imports": ["import math"]})
    assert found == [AssertCase("import math\nx = 3\nassert f(x) == 1", ("f",))]


def test_a_test_program_is_called_with_its_entry_point() -> None:
    test = "METADATA = {}\n\ndef check(candidate):\n    assert candidate(other(1)) == 2\n"
    (found,) = cases({"test": test, "entry_point": "add"})
    assert isinstance(found, AssertCase)
    assert found.test.endswith("check(add)")
    assert found.names == ("add", "other")
    assert cases(test, entry_point="add") == [found]


def test_methods_of_solution_are_functions() -> None:
    (found,) = cases(["assert Solution().two_sum([1], 2) == [0]"])
    assert found == AssertCase("assert two_sum([1], 2) == [0]", ("two_sum",))
    (found,) = cases("def check(candidate):\n    assert candidate(1)", entry_point="Solution().f")
    assert isinstance(found, AssertCase)
    assert found.names == ("f",)


def test_a_function_that_is_called_like_a_builtin_has_to_be_named() -> None:
    with pytest.raises(DataError, match="entry_point"):
        cases(["assert sum(10, 15) == 6"])
    assert cases(["assert sum(10, 15) == 6"], entry_point="sum") == [AssertCase("assert sum(10, 15) == 6", ("sum",))]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (None, "missing"),
        (7, "int"),
        ([], "no test cases"),
        ({}, "none of"),
        ({"inputs": ["1"], "outputs": []}, "one length"),
        ({"inputs": ["1"]}, "one length"),
        ({"inputs": [1], "outputs": ["1"]}, "no text"),
        ({"inputs": ["{"], "outputs": ["1"], "fn_name": "f"}, "no JSON"),
        ({"inputs": [5], "outputs": ["1"], "fn_name": "f"}, "no list"),
        ({"inputs": [], "outputs": [], "fn_name": ["f"]}, "expected a name"),
        ([1, 2], "neither"),
        (["assert f("], "no Python"),
        (["f(1)"], "assert nothing"),
        (["assert True"], "call nothing"),
        (["s = Stack()\nassert s.pop() == 1"], "class"),
        ("def check(candidate):\n    assert candidate(1)", "entry_point"),
        ("(" * 5000, "no Python"),
    ],
)
def test_what_cant_be_read_is_told_with_the_task(given: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as caught:
        cases(given)
    assert caught.value.where == "task 'task-0'"


# Programs.

BLOCKS = "First\n```python\none\n```\nthen\n```\ntwo\n```\n```json\n{}\n```\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (BLOCKS, "one"),
        (BLOCKS + "~~~Py\nthree\n```\n~~~", "three\n```"),
        (BLOCKS + "```Python3 title=x\nfour", "four"),
        ("```\nonly\n```", "only"),
        ("```text\nno\n```", None),
        ("no block", None),
        ("", None),
        ("```python\n```", ""),
        ("  ```py\n  x\n  ```", "  x"),
        ("````python\n```\nx\n```\n````", "```\nx\n```"),
    ],
)
def test_the_program_is_the_last_block_of_python(text: str, code: str | None) -> None:
    assert solution(text) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print(1)", "print(1)"),
        ("```python\nprint(1)\n```", "print(1)"),
        ("```\nprint(1)\n```", "print(1)"),
        ("\n\n```py\nx = 1\nx\n```\n\n", "x = 1\nx"),
        ("```Python \nprint(1)\n``` ", "print(1)"),
        ("```python\nprint(1)", "print(1)"),
        ("```python", ""),
        ("```", ""),
        ("    x = 1\n    if x:\n        x", "x = 1\nif x:\n    x"),
        ("\tx = 1\n\tx", "x = 1\nx"),
        ("```python\n  x = 1\n  x\n```", "x = 1\nx"),
        ("x = '''\n```python\n'''", "x = '''\n```python\n'''"),
        ("```json\n{}\n```", "```json\n{}\n```"),
        ("Here it is:\n```python\n1\n```", "Here it is:\n```python\n1\n```"),
        ("x = 1\n    # odd\n  ", "x = 1\n    # odd"),
        ("", ""),
        ("\r\n", ""),
    ],
)
def test_fences_and_indentation_go(text: str, code: str) -> None:
    assert runnable(text) == code


# Output.


@pytest.mark.parametrize(
    ("given", "expected", "right"),
    [
        ("3\n", "3", True),
        ("1 2 \r\n3\n\n\n", "1   2\n3", True),
        ("1 2 3", "1 2\n3", False),
        ("\n3", "3", False),
        ("0.33333334", "0.33333333", True),
        ("1", "1.0", True),
        ("1e0", "1.0", True),
        ("0.34", "0.33", False),
        ("1000000", "1000001", False),
        ("1000000.0", "1000001", False),
        ("nan", "0.5", False),
        ("inf", "1e999", False),
        ("1e999", "1e999", True),
        ("Yes", "YES", False),
        ("1_0.0", "10.0", False),
        ("", "", True),
        ("9" * 100_000, "0.5", False),
    ],
)
def test_output(given: str, expected: str, right: bool) -> None:
    assert same_output(given, expected, 1e-6) is right


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(PLAIN)
def test_a_json_value_equals_itself(value: Any) -> None:
    assert same_value(encode(value), value, 0.0)


@pytest.mark.parametrize(
    ("given", "expected", "right"),
    [
        ((1, (2, 3)), [1, [2, 3]], True),
        (True, 1, False),
        (1, True, False),
        (1.0, 1, True),
        (1, 1.0, True),
        (1.0000000001, 1, False),
        ({1: "a", None: "b"}, {"1": "a", "null": "b"}, True),
        ({(1, 2): 3}, {"(1, 2)": 3}, False),
        ({1, 2}, [1, 2], False),
        (10**30, 10**30, True),
        (10**30, 10**30 + 1, False),
        ("3", 3, False),
        (None, [], False),
        (float("nan"), float("nan"), False),
        (b"x", "x", False),
    ],
)
def test_results_of_functions(given: Any, expected: Any, right: bool) -> None:
    assert same_value(encode(given), expected, 1e-6) is right


@pytest.mark.parametrize("given", [{"d": 7}, {"d": [[1]]}, {"i": "zz"}, {"x": 1, "y": 2}, {}, {"t": 3}])
def test_what_nobody_encoded_equals_nothing(given: Any) -> None:
    assert not same_value(given, 1, 1e-6)
    assert not same_value(given, [], 1e-6)
    with pytest.raises((ValueError, TypeError)):
        decode(given)


def test_a_short_answer_takes_no_time_to_compare() -> None:
    begin = time.process_time()
    assert not same_value({"t": [{"fr": ["1e9999999"]}]}, [1], 1e-6)
    assert time.process_time() - begin < 1


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.binary() | st.decimals(
        allow_nan=False) | st.fractions() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner) | st.frozensets(
        st.integers()) | st.sets(st.text()),
)  # fmt: skip


@given(VALUES)
def test_values_cross_as_they_are(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert type(back) is type(value)


def test_only_data_crosses() -> None:
    class Sly(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    assert decode(encode(Sly(3))) == 3
    assert not same_value(encode(Sly(3)), 4, 0.0)
    assert list(decode(encode(iter([1, 2])))) == [1, 2]
    assert decode(encode({"a": 1}.keys())) == {"a"}
    assert decode(encode(range(3))) == range(3)
    for odd in (object(), len, iter(range(LONGEST_ITERATOR + 1)), ValueError()):
        with pytest.raises(TypeError, match="no plain value"):
            encode(odd)
