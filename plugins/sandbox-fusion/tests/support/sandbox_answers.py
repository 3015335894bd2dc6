"""Answers of a sandbox."""

from __future__ import annotations

from typing import Any


def finished(stdout: str = "", stderr: str = "", code: int = 0, **fields: Any) -> dict[str, Any]:
    """The body of an answer whose program ended."""
    run = {"status": "Finished", "execution_time": 0.01, "return_code": code, "stdout": stdout, "stderr": stderr}
    status = "Success" if code == 0 else "Failed"
    return {
        "status": status,
        "message": "",
        "compile_result": None,
        "run_result": run,
        "executor_pod_name": None,
        "files": {},
        **fields,
    }
