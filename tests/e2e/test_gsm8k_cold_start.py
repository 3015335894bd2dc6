"""The demonstrations of `docs/examples/gsm8k/cold_start.py`: what a demonstration's tool answers is what the tool would
answer, and a solution that says otherwise isn't shown."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("toolrl_plugin_calculator", reason="needs the plugin calculator")
pytest.importorskip("toolrl_plugin_math", reason="needs the plugin math")

SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "gsm8k" / "cold_start.py"
PEN = {
    "question": "Tom buys 12 boxes with 48/2 pens each and sells 3 pens. How many are left?",
    "answer": "A box has 48/2=<<48/2=24>>24 pens.\nThat makes 12*24 = $<<12*24=288>>288.00 pens.\n"
    "So 288-3=<<288-3=285>>285 are left.\n#### 285",
}


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def rows(script: dict[str, Any], tmp_path: Path, tool: str, *problems: dict[str, str]) -> list[dict[str, Any]]:
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))
    return list(script["demonstrations"](str(tmp_path), tool))


def test_each_calculation_is_a_call(script: dict[str, Any], tmp_path: Path) -> None:
    (shown,) = rows(script, tmp_path, "calculator", PEN)
    (plain,) = rows(script, tmp_path, "no_tools", PEN)
    assert [message["role"] for message in shown["messages"]] == ["user"] + ["assistant", "tool"] * 3 + ["assistant"]
    calls = [message["tool_calls"][0]["function"] for message in shown["messages"] if "tool_calls" in message]
    assert [call["arguments"]["expression"] for call in calls] == ["48/2", "12*24", "288-3"]
    assert [message["content"] for message in shown["messages"] if message["role"] == "tool"] == ["24", "288", "285"]
    assert shown["messages"][-1]["content"] == "285 are left.\n#### 285"
    assert plain["answer"] == "285"
    said = "".join(message["content"] for message in shown["messages"] if message["role"] == "assistant")
    assert said == plain["messages"][-1]["content"], "with calls or without, the words are the same"
    assert "<<" not in said
    assert rows(script, tmp_path, "inline", PEN) == [{**shown, "environment": "inline"}]


WRONG = ("<<2*3=7>>7.\n#### 7", "<<10/3=3.33>>3.33.\n#### 3", "<<1/0=0>>0.\n#### 0", "<<2*3=6>>6.\n#### six")


@pytest.mark.parametrize("answer", WRONG)
@pytest.mark.parametrize("tool", ["calculator", "python", "no_tools"])
def test_what_no_tool_would_answer_is_left_out(script: dict[str, Any], tmp_path: Path, tool: str, answer: str) -> None:
    assert rows(script, tmp_path, tool, {"question": "?", "answer": answer}) == []
