"""The example of an evaluation behind an API, against a server that calls the calculator and repeats what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from toolrl.runs.folder import RunFolder
from toolrl_testing.http_stub import HttpReply, http_stub

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "api" / "eval.yaml"


def answer(request: dict[str, Any]) -> HttpReply:
    last = request["messages"][-1]
    if last["role"] == "tool":
        said: dict[str, Any] = {"role": "assistant", "content": last["content"]}
    elif not request.get("tools"):
        said = {"role": "assistant", "content": "That takes a calculator."}
    else:
        expression = "".join(it for it in last["content"] if it in "0123456789+-*/() ").strip()
        function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
        said = {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function}]}
    usage = {"prompt_tokens": 40, "completion_tokens": 10}
    return HttpReply({"choices": [{"message": said, "finish_reason": "stop"}], "usage": usage})


def evaluate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    with http_stub(answer) as api:
        settings = ("--set", "evaluation.tasks=8", "--set", f"engine.options.base_url={api.url}/v1")
        command = [sys.executable, "-m", "toolrl", "eval", str(EXAMPLE), *arguments, *settings]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_example_evaluates(tmp_path: Path) -> None:
    done = evaluate(tmp_path, "--json")
    assert done.returncode == 0, done.stderr
    metrics = json.loads(done.stdout)
    assert metrics["accuracy"] == 1
    assert metrics["usage/cost"] == pytest.approx(16 * (40 * 0.25 + 10 * 2) / 1e6)
    report = (tmp_path / "runs" / "api" / "eval" / "report.html").read_text(encoding="utf-8")
    assert "usage/cost" in report


def test_it_is_ablated(tmp_path: Path) -> None:
    done = evaluate(tmp_path, "--ablate")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["with", "tools", "1", "[0.676,", "1.000]", "1", "±", "0", "1"] in lines
    accuracy, reward = ["+1.000", "[+0.541,", "+1.000]"], ["+1.000", "[+1.000,", "+1.000]"]
    for title, calls in (("without tools", "0"), ("shuffled answers", "1"), ("failing tools", "1")):
        assert [*title.split(), "0", "[0.000,", "0.324]", "0", "±", "0", calls, *accuracy, *reward] in lines
    folder = RunFolder.open(tmp_path / "runs" / "api" / "eval-ablate")
    assert folder.metrics_lines("eval")[0].metrics["ablation/shuffled/accuracy"] == 0.0
    ids = Counter(stored.episode.id.partition("/")[0] for stored in folder.episodes())
    assert ids == {"eval-0": 8, "none": 8, "shuffled": 8, "failing": 8}
