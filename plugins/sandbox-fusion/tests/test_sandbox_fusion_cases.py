"""Test cases: how they are read, the program around a function, the verdict of an answer."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from toolrl.errors import DataError
from toolrl_plugin_sandbox_fusion.api import CommandResult, RunResponse
from toolrl_plugin_sandbox_fusion.cases import (
    ProgramCase,
    Status,
    function_program,
    matches,
    read_cases,
    verdict,
)


class TestReading:
    def test_standard_input_and_output(self) -> None:
        cases = read_cases({"inputs": ["1\n", None, 5], "outputs": ["2\n", "", 6]}, "task")
        assert len(cases) == 3
        assert cases.case(0, "code") == ProgramCase("code", "1\n", "2\n")
        assert cases.case(1, "code") == ProgramCase("code", None, "")
        assert cases.case(2, "code") == ProgramCase("code", "5", "6")

    def test_asserts(self) -> None:
        cases = read_cases({"assert_case": ["assert f(1) == 2", "assert f(2) == 3"]}, "task")
        assert cases.asserts == ("assert f(1) == 2", "assert f(2) == 3")

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (None, "missing"),
            (7, "int"),
            ({}, "none"),
            ({"inputs": ["1"]}, "1 inputs, 0 outputs"),
            ({"inputs": [], "outputs": []}, "none"),
            ({"inputs": "12", "outputs": "34"}, "no list"),
            ({"inputs": ["1", "2"], "outputs": ["1"]}, "2 inputs, 1 outputs"),
            ({"inputs": ["1"], "outputs": ["1"], "assert_case": ["a", "b"]}, "2 asserts"),
            ({"inputs": ["1"], "outputs": ["1"], "assert_case": ["assert f()"]}, "statements alone"),
            ({"assert_case": ["assert f()"], "fn_name": "f"}, "statements alone"),
            ({"inputs": ["1", "2"], "outputs": ["1", None]}, r"outputs\[1\].*every program would pass"),
            ({"inputs": ["1"], "outputs": ["1"], "fn_name": 3}, "fn_name 3"),
            ({"inputs": ["1", "[1"], "outputs": ["1", "1"], "fn_name": "f"}, r"inputs\[1\]"),
        ],
    )
    def test_what_is_no_test_case_is_a_fault_of_the_data(self, given: Any, message: str) -> None:
        with pytest.raises(DataError, match=message) as error:
            read_cases(given, "task 'a'")
        assert error.value.where == "task 'a'"


def call(source: str, function: str, stdin: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", function_program(source, function)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


class TestFunction:
    @pytest.mark.parametrize(
        ("source", "function", "stdin", "out"),
        [
            ("def add(a, b): return a + b", "add", "1\n2", "3"),
            ("def add(a, b): return a + b", "add", '"x"\n"y"\n', "xy"),
            ("class Solution:\n    def f(self, xs: List[int]) -> int:\n        return sum(xs)", "f", "[1, 2, 3]", "6"),
            ("def f(): return defaultdict(int)", "f", "", "{}"),
            ("def f(): return True", "f", "", "true"),
            ("def f(): return (1, [2, {'a': 3}])", "f", "", '[1, [2, {"a": 3}]]'),
            ("def f(): return math.gcd(12, 18), gcd(4, 6), heapq.nlargest(1, [3, 5])", "f", "", "[6, 2, [5]]"),
            ("from __future__ import annotations\ndef f(x: Unknown): return pow(x, 2)", "f", "3", "9"),
            (
                "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: 'int'\ndef f(): return P(1).x",
                "f",
                "",
                "1",
            ),
            ("print('debug')\ndef f():\n    print('more')\n    return 1", "f", "", "1"),
            ("def f(): return 1\nif __name__ == '__main__':\n    print(input())", "f", "", "1"),
            ("class Solution:\n    def search(self, x): return x\n", "search", "7", "7"),
            ("def search(x): return x + 1", "search", "7", "8"),
            ('def f(s): return s + "\\"\'\\\\ é🙂"', "f", '"a"', "a\"'\\ é🙂"),
        ],
    )
    def test_result(self, source: str, function: str, stdin: str, out: str) -> None:
        done = call(source, function, stdin)
        assert (done.stdout, done.returncode) == (out + "\n", 0), done.stderr

    @pytest.mark.parametrize(
        ("source", "function", "stdin", "error"),
        [
            ("def f(): return 1", "g", "", "NameError"),
            ("def f(): raise ValueError('no')", "f", "", "ValueError: no"),
            ("def f(:", "f", "", "SyntaxError"),
            ("import sys\nsys.exit(0)\ndef f(): return 1", "f", "", "SystemExit"),
        ],
    )
    def test_what_fails_ends_with_an_exit_code(self, source: str, function: str, stdin: str, error: str) -> None:
        done = call(source, function, stdin)
        assert done.returncode == 1
        assert done.stdout == ""
        assert error in done.stderr


def ended(stdout: str | None, code: int = 0, status: str = "Success") -> RunResponse:
    return RunResponse(status, run_result=CommandResult("Finished", 0.1, code, stdout, ""))


def compiled(status: str, code: int | None) -> RunResponse:
    return RunResponse("Failed", compile_result=CommandResult(status, 0.1, code, "", ""))


class TestVerdict:
    @pytest.mark.parametrize(
        ("response", "status"),
        [
            (ended("4\n"), Status.PASSED),
            (ended("4"), Status.PASSED),
            (ended("4 \n"), Status.WRONG),
            (ended(None), Status.WRONG),
            (ended("4", 1, "Failed"), Status.RUNTIME_ERROR),
            (ended("4", -9, "Failed"), Status.RUNTIME_ERROR),
            (ended("4", 0, "Failed"), Status.API_ERROR),
            (RunResponse("Failed", run_result=CommandResult("TimeLimitExceeded")), Status.TIMEOUT),
            (RunResponse("Failed", run_result=CommandResult("Error")), Status.RUNTIME_ERROR),
            (RunResponse("Failed"), Status.API_ERROR),
            (RunResponse("Success"), Status.API_ERROR),
            (RunResponse("Success", run_result=CommandResult("TimeLimitExceeded")), Status.API_ERROR),
            (RunResponse("SandboxError", run_result=CommandResult("Error")), Status.API_ERROR),
            (RunResponse("SandboxError", run_result=CommandResult("Finished", 0, 0, "4")), Status.API_ERROR),
            (compiled("Finished", 1), Status.COMPILE_ERROR),
            (compiled("Error", None), Status.COMPILE_ERROR),
            (compiled("TimeLimitExceeded", None), Status.COMPILE_ERROR),
        ],
    )
    def test_status(self, response: RunResponse, status: Status) -> None:
        assert verdict(response, ProgramCase("", None, "4\n")) is status

    def test_a_function_that_should_return_none_has_to(self) -> None:
        assert verdict(ended("null\n"), ProgramCase("", None, None)) is Status.PASSED
        assert verdict(ended("anything"), ProgramCase("", None, None)) is Status.WRONG
        assert verdict(ended("anything", 1, "Failed"), ProgramCase("", None, None)) is Status.RUNTIME_ERROR

    @pytest.mark.parametrize(
        ("stdout", "value", "right"),
        [
            ("[1, 2]\n", [1, 2], True),
            ("[1, 2.0]", [1, 2], True),
            ("[2, 1]", [1, 2], False),
            ("true\n", True, True),
            ("1\n", True, False),
            ("1", 1.0, True),
            ('{"a": [1]}', {"a": [1]}, True),
            ('{"a": [1], "b": 2}', {"a": [1]}, False),
            ("no json", [1], False),
            ("[" * 100_000, [1], False),
        ],
    )
    def test_results_of_functions_compare_as_values(self, stdout: str, value: Any, right: bool) -> None:
        cases = read_cases({"fn_name": "f", "inputs": ["1"], "outputs": [value]}, "task")
        assert matches(stdout, cases.case(0, "")) is right
