"""Cases: each is read as it expects. `cases.jsonl` lies here; the shared ones may be at hand, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from toolrl_plugin_qwen.hermes import HermesParser
from toolrl_plugin_qwen.qwen3_coder import Qwen3CoderParser
from toolrl_testing.checks.parsers import check_cases

CHECKOUT = Path(__file__).parents[3]
SHARED = Path(os.environ.get("TOOLRL_SHARED") or CHECKOUT.parent / "shared")
CASES = SHARED / "parsers" / "cases.jsonl"
PARSERS = {"hermes": HermesParser(), "answer": HermesParser(), "qwen3_coder": Qwen3CoderParser()}


@pytest.mark.parametrize("name", PARSERS)
def test_own_cases(name):
    check_cases(PARSERS[name], Path(__file__).with_name("cases.jsonl"), name)


@pytest.mark.skipif(not CASES.exists(), reason=f"there is no {CASES}; set TOOLRL_SHARED to the folder that has it")
@pytest.mark.parametrize("name", PARSERS)
def test_shared_cases(name):
    check_cases(PARSERS[name], CASES, name)
