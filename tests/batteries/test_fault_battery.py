"""The fault battery: a few hundred episodes in every run, twenty thousand in `nox -s slow`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("fault_battery.py")
KINDS = {
    "ok", "timeout", "crash", "unavailable", "limit", "malformed", "unknown_tool", "tool_error", "too_many_calls",
    "bad_arguments",
}  # fmt: skip


@pytest.mark.parametrize("episodes", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_episode_is_lost_every_call_is_answered_and_nothing_is_left(episodes: int) -> None:
    command = [sys.executable, str(SCRIPT), "--episodes", str(episodes), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["releases"] > 2 * episodes
    assert set(result["answers"]) == KINDS
    assert result["episodes_cancelled"] > 0
