"""Test cases in the shapes that data sets have, programs in texts, and what counts as the expected output."""

from __future__ import annotations

import json
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import DataError
from toolrl_common.plain_values import decode, encode
from toolrl_plugin_python.cases import CallCase, Case, OutputCase, read_cases
from toolrl_plugin_python.reward import solution
from toolrl_plugin_python.tool import runnable
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


@pytest.mark.parametrize("line", ["~" * 20_000 + "`", "```" + " " * 20_000 + "`", " " * 20_000 + "`", "`" * 20_000])
def test_a_long_line_of_fences_is_read_at_once(line: str) -> None:
    assert solution(f"```python\nx = 1\n```\n{line}") == "x = 1"


def test_a_field_of_the_row_and_what_stands_beside_it() -> None:
    row = {"tests": {"inputs": [[1]], "outputs": [2]}, "fn_name": "f"}
    assert read_cases(make_task(answer="unused", extra=row), "tests") == [CallCase("f", (1,), (2,))]


@pytest.mark.parametrize(
    ("test", "found"),
    [
        ("assert f(1, k='a') == (2, {3})", CallCase("f", (1,), ((2, {3}),), {"k": "a"}, operator.eq)),
        ("assert -3 == f([1])", CallCase("f", ([1],), (-3,), holds=operator.eq)),
        ("assert f() is None, 'says why'", CallCase("f", (), (None,), holds=operator.is_)),
        ("assert f(2) >= 1.5", CallCase("f", (2,), (1.5,), holds=operator.ge)),
        ("assert Solution().f(1) != 2", CallCase("f", (1,), (2,), holds=operator.ne)),
    ],
)
def test_an_assert_is_a_call_and_what_it_gives(test: str, found: CallCase) -> None:
    assert cases([test]) == [found]
    assert cases({"test_list": [f"import math\n{test}", test]}) == [found, found]
    check = f"METADATA = {{}}\n\ndef check(candidate):\n    {test.replace('f(', 'candidate(')}\n    assert True\n"
    for entry in ("f", "Solution().f"):
        given = check.replace("Solution().", "")
        assert cases({"test": given, "entry_point": entry}) == cases(given, entry_point=entry) == [found]


@pytest.mark.parametrize(
    ("test", "right", "wrong"),
    [
        ("assert f(1)", [1], []),
        ("assert not f(1)", 0, 1),
        ("assert abs(f(1) - 0.5) < 1e-3", 0.5004, 0.502),
        ("assert math.isclose(f(1), 0.5, rel_tol=0.01)", 0.504, 0.51),
        ("assert isclose(f(1), 0.5)", 0.5 + 1e-12, 0.5 + 1e-6),
        ("assert f(1) == (1, 2)", (1, 2), [1, 2]),
        ("assert set(f(1)) == set((4, 5))", (5, 4), (5, 6)),
        ("assert len(f(1)) > 1", [1, 2], [1]),
        ("assert round(f(1), 2) == 0.33", 1 / 3, 0.3),
    ],
)
def test_what_an_assert_takes(test: str, right: Any, wrong: Any) -> None:
    (case,) = cases([test])
    assert isinstance(case, CallCase)
    assert case.holds is not None
    assert [bool(case.holds(value, case.expected[0])) for value in (right, wrong)] == [True, False]


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
        (["f(1)"], "more than asserts"),
        (["f(1)\nassert f(2)"], "more than asserts"),
        (["assert sum(10, 15) == 6"], "entry_point"),
        (["assert True"], "no test cases"),
        (["s = Stack()\nassert s.pop() == 1"], "no function"),
        (["assert f(x) == 1"], "literals"),
        (["assert f(...) == 1"], "literals"),
        (["assert set(f(1), f(2)) == {1}"], "literals"),
        (["assert f(1) == f(2)"], "literals"),
        (["assert 1 < f(2) < 3"], "isn't a call compared"),
        (["for i in (1, 2):\n    assert f(i)"], "more than asserts"),
        (["def test_f():\n    assert f(1)"], "more than asserts"),
        (["assert f(1) == " + "+".join(["1"] * 5000)], "test cases"),
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
        ("0.0", "0.00000012", False),
        ("0.00000034", "0.00000012", False),
        ("1.2000001e-7", "0.00000012", True),
        ("9.109e-31", "6.626e-34", False),
        ("6.6260001e-34", "6.626e-34", True),
        ("1e-9", "0.0", True),
        ("-0.000001", "0.000", True),
        ("0.0001234567", "0.000123", True),
        ("0.0", "6.123233995736766e-17", True),
        ("1000001.0", "1000000.0", True),
        ("1000003.0", "1000000.0", False),
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
    assert same_value(decode(encode(value)), value, 0.0)


@pytest.mark.parametrize(
    ("given", "expected", "right"),
    [
        ((1, (2, 3)), [1, [2, 3]], True),
        (True, 1, False),
        (1, True, False),
        (1.0, 1, True),
        (1, 1.0, True),
        (0.0, 1.2e-07, False),
        (9.109e-31, 6.626e-34, False),
        (1.2000001e-07, 1.2e-07, True),
        (0.0, 1.1102230246251565e-16, True),
        (1e-17, 0.0, True),
        (float("inf"), float("inf"), True),
        (10**400, 1.5, False),
        (1.0000000001, 1, False),
        ({1: "a", None: "b"}, {"1": "a", "null": "b"}, True),
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
    assert same_value(decode(encode(given)), expected, 1e-6) is right


@pytest.mark.parametrize("given", [{"d": 7}, {"d": [[1]]}, {"i": "zz"}, {"x": 1, "y": 2}, {}, {"t": 3}])
def test_what_nobody_encoded_is_no_value(given: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode(given)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.binary()
    | st.complex_numbers(allow_nan=False),
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
    for odd in (object(), len, iter([1]), ValueError()):
        with pytest.raises(TypeError, match="not a plain value"):
            encode(odd)
