"""The calculator against real input: the `<<48/2=24>>` marks in the solutions of GSM8K."""

from __future__ import annotations

import json
import os
import re
from fractions import Fraction
from pathlib import Path

import pytest

from toolrl_plugin_calculator.evaluate import ExpressionEvaluator

SHARED = Path(os.environ.get("TOOLRL_SHARED", Path(__file__).resolve().parents[4] / "shared"))


@pytest.mark.parametrize(("split", "count"), [("train", 23_716), ("test", 4282)])
def test_every_mark_is_read_and_agrees(split: str, count: int) -> None:
    path = SHARED / "data" / "gsm8k" / f"{split}.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} isn't there; set TOOLRL_SHARED to a folder that holds data/gsm8k/*.jsonl")
    evaluate = ExpressionEvaluator()
    marks = [
        mark
        for line in path.read_text().splitlines()
        for mark in re.findall(r"<<(.*?)=([^=<>]*)>>", json.loads(line)["answer"])
    ]
    assert len(marks) == count
    for expression, value in marks:
        assert Fraction(evaluate(expression)) == Fraction(value.replace(",", "")), expression
