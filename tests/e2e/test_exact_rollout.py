"""What is trained is what was sampled, token for token: 500 episodes of a real engine with real tools, several turns.

The checks are those of `tests/benchmarks/exact_rollout.py`, which also counts what a trainer that keeps texts would
have got wrong. An ordinary run takes the tiny model; `nox -s slow` also takes Qwen2.5-Coder-0.5B-Instruct, which calls
its tool of its own accord, where TOOLRL_QWEN_CODER names its folder.
"""

from __future__ import annotations

import asyncio
import os
import runpy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODER = os.environ.get("TOOLRL_QWEN_CODER")
TASKS, GROUP = 125, 4


@pytest.fixture(scope="module")
def proof() -> dict[str, Any]:
    """The benchmark's functions."""
    for name in ("torch", "transformers", "toolrl_plugin_transformers"):
        pytest.importorskip(name)
    return runpy.run_path(str(ROOT / "tests" / "benchmarks" / "exact_rollout.py"))


def test_500_episodes_are_what_the_engine_sampled(
    proof: dict[str, Any], warm: Any, workplace: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        "model": {"path": "runs/warm"},
        "data": {"train": {"use": "arithmetic", "options": {"kinds": ["tiny_sum", "product"], "size": 500}}},
        "rollout": {"temperature": 1.2, "max_turn_tokens": 32, "max_episode_tokens": 256, "concurrency": 96},
        "run": {"name": "exact"},
    }
    config = workplace.config(changes, name="exact")
    monkeypatch.chdir(workplace.folder)
    figures = asyncio.run(proof["prove"](config, TASKS, GROUP))
    print(asdict(figures))
    assert figures.episodes == TASKS * GROUP
    # The rollout was of the kind that breaks what keeps texts: calls, several turns, other spellings, new weights.
    assert figures.calls > 100
    assert figures.several_turns > 100
    assert figures.turns == figures.sequences > figures.episodes + 100
    assert figures.not_canonical > 10
    assert figures.in_flight_at_update > 0
    assert figures.mixed_versions > 0


# The same with a real model.


@pytest.mark.slow
@pytest.mark.skipif(not CODER, reason="set TOOLRL_QWEN_CODER to the folder of Qwen2.5-Coder-0.5B-Instruct")
def test_500_episodes_of_a_real_model(proof: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", str(CODER))
    monkeypatch.chdir(tmp_path)
    figures = asyncio.run(proof["prove"](proof["CONFIG"], TASKS, GROUP))
    print(asdict(figures))
    assert figures.episodes == TASKS * GROUP
    assert figures.calls > 100
    assert figures.several_turns > 100
    assert figures.not_canonical > 0
    assert figures.mixed_versions > 0
