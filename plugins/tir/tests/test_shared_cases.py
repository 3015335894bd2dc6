"""The shared cases, where they are at hand: each is read as it expects."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolrl_plugin_tir.parser import TirParser
from toolrl_testing.checks.parsers import check_cases

CHECKOUT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("TOOLRL_SHARED") or CHECKOUT.parent / "shared")
CASES = SHARED / "parsers" / "cases.jsonl"


@pytest.mark.skipif(not CASES.exists(), reason=f"there is no {CASES}; set TOOLRL_SHARED to the folder that has it")
def test_shared_cases():
    check_cases(TirParser(), CASES, "tir")
