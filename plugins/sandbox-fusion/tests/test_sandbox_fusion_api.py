"""The forms of the API: what is read, what is written, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl_plugin_sandbox_fusion.api import CommandResult, RunResponse, overall

RESULTS = st.builds(
    CommandResult,
    st.sampled_from(["Finished", "Error", "TimeLimitExceeded"]),
    st.none() | st.floats(0, 1e6),
    st.none() | st.integers(-255, 255),
    st.none() | st.text(),
    st.none() | st.text(),
)


@settings(deadline=None)
@given(
    st.builds(
        RunResponse,
        st.sampled_from(["Success", "Failed", "SandboxError"]),
        st.text(),
        st.none() | RESULTS,
        st.none() | RESULTS,
        st.none() | st.text(),
        st.dictionaries(st.text(), st.text(), max_size=3),
    )
)
def test_what_is_written_is_read_back(response: RunResponse) -> None:
    assert RunResponse.read(json.loads(json.dumps(response.body()))) == response


def test_fields_of_later_versions_are_ignored_and_missing_ones_are_empty() -> None:
    read = RunResponse.read({"status": "Success", "new": 1, "run_result": {"status": "Finished", "new": 2}})
    assert read == RunResponse("Success", run_result=CommandResult("Finished"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "body"),
        ({}, "`status`: Field required"),
        ({"status": 1}, "`status`"),
        ({"status": "Success", "message": 1}, "`message`"),
        ({"status": "Success", "run_result": []}, "`run_result`"),
        ({"status": "Success", "run_result": {"stdout": 3}}, "`run_result.stdout`"),
        ({"status": "Success", "compile_result": {"return_code": "0"}}, "`compile_result.return_code`"),
        ({"status": "Success", "compile_result": {"return_code": True}}, "`compile_result.return_code`"),
        ({"status": "Success", "run_result": {"execution_time": "1"}}, "`run_result.execution_time`"),
        ({"status": "Success", "run_result": {"execution_time": 10**400}}, "`run_result.execution_time`"),
        ({"status": "Success", "run_result": {"execution_time": float("nan")}}, "finite number"),
        ({"status": "Success", "files": [1]}, "`files`"),
        ({"status": "Success", "files": {"a": 1}}, "`files.a`"),
    ],
)
def test_what_is_no_answer_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunResponse.read(value)


@pytest.mark.parametrize(
    ("compiled", "run", "status", "message"),
    [
        (None, CommandResult("Finished", return_code=0), "Success", ""),
        (CommandResult("Finished", return_code=0), CommandResult("Finished", return_code=0), "Success", ""),
        (None, CommandResult("Finished", return_code=1), "Failed", ""),
        (CommandResult("Finished", return_code=1), None, "Failed", ""),
        (None, CommandResult("TimeLimitExceeded"), "Failed", ""),
        (CommandResult("TimeLimitExceeded"), None, "Failed", ""),
        (None, CommandResult("Error", stderr="no"), "SandboxError", "no"),
        (CommandResult("Finished", return_code=0), CommandResult("Error", stderr="no"), "SandboxError", "no"),
        (None, None, "Success", ""),
    ],
)
def test_the_status_over_both_commands(
    compiled: CommandResult | None, run: CommandResult | None, status: str, message: str
) -> None:
    assert overall(compiled, run) == (status, message)
