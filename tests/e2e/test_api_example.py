"""The example of an evaluation behind an API, against a server that calls the calculator and repeats what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from toolrl_testing.http_stub import HttpReply, http_stub

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "api" / "eval.yaml"


def answer(request: dict[str, Any]) -> HttpReply:
    last = request["messages"][-1]
    if last["role"] == "tool":
        said: dict[str, Any] = {"role": "assistant", "content": last["content"]}
    else:
        expression = "".join(it for it in last["content"] if it in "0123456789+-*/() ").strip()
        function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
        said = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    usage = {"prompt_tokens": 40, "completion_tokens": 10}
    return HttpReply({"choices": [{"message": said, "finish_reason": "stop"}], "usage": usage})


def test_the_example_evaluates(tmp_path: Path) -> None:
    with http_stub(answer) as api:
        settings = ("--set", "evaluation.tasks=8", "--set", f"engine.options.base_url={api.url}/v1")
        command = [sys.executable, "-m", "toolrl", "eval", str(EXAMPLE), "--json", *settings]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)
    assert metrics["accuracy"] == 1
    assert metrics["usage/cost"] == pytest.approx(16 * (40 * 0.25 + 10 * 2) / 1e6)
    report = (tmp_path / "runs" / "api" / "eval" / "report.html").read_text(encoding="utf-8")
    assert "usage/cost" in report
