"""What the model reads of a run, and what a model's text gives as program."""

from __future__ import annotations

import pytest

from toolrl_plugin_sandbox_fusion.api import CommandResult, RunRequest, RunResponse, SandboxApiError
from toolrl_plugin_sandbox_fusion.reward import solution
from toolrl_plugin_sandbox_fusion.tool import plain_text, verl_text

REQUEST = RunRequest("x", compile_timeout=3.0, run_timeout=2.0)


def ended(stdout: str | None = "", stderr: str | None = "", code: int | None = 0) -> RunResponse:
    return RunResponse("Failed" if code else "Success", run_result=CommandResult("Finished", 0.1, code, stdout, stderr))


TIMED_OUT = RunResponse("Failed", run_result=CommandResult("TimeLimitExceeded", 2.0, None, "so far\n", ""))
NOT_COMPILED = RunResponse("Failed", compile_result=CommandResult("Finished", 0.1, 1, "", "x.cpp:1: error\n"))
COMPILE_TIME = RunResponse("Failed", compile_result=CommandResult("TimeLimitExceeded", 3.0, None, "", ""))
SANDBOX = RunResponse("SandboxError", "no such runner", run_result=CommandResult("Error", stderr="no such runner"))


class TestPlain:
    @pytest.mark.parametrize(
        ("response", "text"),
        [
            (ended("4\n"), "4\n"),
            (ended("4\n", "warning\n"), "4\nwarning\n"),
            (ended("a", "ValueError: no\n", 1), "aValueError: no\n"),
            (ended(), "The program ended without any output."),
            (ended("a", "", 3), "a\nThe program ended with exit code 3."),
            (ended("", "", -9), "The program was killed by signal 9, perhaps because it took too much memory."),
            (ended("", "x\n", 137), "x\nThe program was killed by signal 9, perhaps because it took too much memory."),
            (TIMED_OUT, "so far\nThe program ran longer than 2 s and was stopped."),
            (NOT_COMPILED, "The program doesn't compile:\nx.cpp:1: error\n"),
            (COMPILE_TIME, "Compiling took longer than 3 s and was stopped."),
        ],
    )  # fmt: skip
    def test_text(self, response: RunResponse, text: str) -> None:
        assert plain_text(REQUEST, response).rstrip("\n") == text.rstrip("\n")

    @pytest.mark.parametrize("response", [SANDBOX, RunResponse("Failed"), RunResponse("Success")])
    def test_a_fault_of_the_sandbox_is_no_answer(self, response: RunResponse) -> None:
        with pytest.raises(SandboxApiError, match=f"couldn't run the program.\n{response.message}"):
            plain_text(REQUEST, response)


def test_verls_text() -> None:
    assert verl_text(ended("4\n", "warning\n")) == "4\nwarning\n"
    assert verl_text(ended("a", "b", 1)) == "ab"
    assert verl_text(ended()) == ""
    for response in (TIMED_OUT, NOT_COMPILED, COMPILE_TIME, SANDBOX, RunResponse("Failed")):
        assert verl_text(response) == "no stdout here"


class TestSolution:
    @pytest.mark.parametrize(
        ("text", "program"),
        [
            ("no code", None),
            ("```python\nprint(1)\n```", "\nprint(1)\n"),
            ("a\n```python\n1\n```\nb\n```python\n2\n```\nc", "\n2\n"),
            ("```python\n1\n```\n```output\n2\n```", "\n1\n"),
            ("```\nprint(1)\n```", "\nprint(1)\n"),
            ("```py\nprint(1)\n```", "\nprint(1)\n"),
            ("```python3\nprint(1)\n```", "\nprint(1)\n"),
            ("```python print(1)```", " print(1)"),
            ("```python\nprint(1)", "\nprint(1)"),
            ("```", ""),
            ("```python", ""),
            ("```python\n1\n```python\n2\n```", "\n2\n"),
            ("```output\n3\n```\n```python\n4\n```", "\n4\n"),
        ],
    )
    def test_python(self, text: str, program: str | None) -> None:
        assert solution(text) == program

    @pytest.mark.parametrize(
        ("language", "text", "program"),
        [
            ("cpp", "```python\n1\n```\n```cpp\nint x;\n```", "\nint x;\n"),
            ("cpp", "```c++\nint x;\n```", "\nint x;\n"),
            ("cpp", "```python\n1\n```", "\n1\n"),
            ("nodejs", "```js\n1\n```\n```javascript\n2\n```", "\n2\n"),
            ("nodejs", "```javascript\n2\n```\n```js\n1\n```", "\n1\n"),
        ],
    )
    def test_other_languages(self, language: str, text: str, program: str) -> None:
        assert solution(text, language) == program
