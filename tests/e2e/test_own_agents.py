"""Agents of packages from PyPI, each in a process of its own, play a step of training by a small model that has learned
calls. What is recorded is what was sampled: the trainer finds the engine's log-probabilities again.

`nox -s harnesses` installs the packages; TOOLRL_AGENTS_PYTHON has the interpreters that have them, as PATH has folders.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="children are ended on Linux")]
PYTHONS = os.environ.get("TOOLRL_AGENTS_PYTHON", sys.executable).split(os.pathsep)
AGENTS = Path(__file__).parents[2] / "docs" / "examples" / "own-agent"
APPEND_ONLY = {
    "openai": "with_openai.py",
    "agents": "with_openai_agents.py chat",
    "agents_responses": "with_openai_agents.py responses",
    "smolagents": "with_smolagents.py code",
    "qwen_agent": "with_qwen_agent.py",
    "anthropic": "with_anthropic.py",
}
OTHERS = {
    "summary": "with_openai_summary.py",
    "handoff": "with_openai_agents.py handoff",
    "langgraph": "with_langgraph.py",
    "smolagents_tools": "with_smolagents.py tools",
    "minisweagent": "with_mini_swe_agent.py",
}
AGENT = APPEND_ONLY | OTHERS
PACKAGE = {name: name.partition("_")[0] for name in AGENT} | {
    "summary": "openai",
    "handoff": "agents",
    "minisweagent": "minisweagent",
    "qwen_agent": "qwen_agent",
}


@pytest.fixture
def long_model(own_place: Any) -> str:
    """The run `warm` as a model whose positions don't end within smolagents' instructions."""
    (config,) = (own_place.folder / "runs" / "warm").glob("checkpoints/*/config.json")
    model = own_place.folder / "long"
    shutil.copytree(config.parent, model, ignore=shutil.ignore_patterns("manifest.json", "trainer"))
    known = json.loads(config.read_text())
    (model / "config.json").write_text(json.dumps({**known, "max_position_embeddings": 1 << 15}))
    return str(model)


@pytest.fixture(scope="module")
def pythons() -> dict[str, str]:
    """The interpreter of each package. Skips if one is missing."""
    names = sorted(set(PACKAGE.values()))
    code = f"from importlib.util import find_spec as f; print(*[n for n in {names!r} if f(n)])"
    found: dict[str, str] = {}
    for python in PYTHONS:
        has = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
        found = dict.fromkeys(has.split(), python) | found
    if missing := sorted(set(names) - set(found)):
        pytest.skip(f"not installed: {', '.join(missing)}; `nox -s harnesses` installs them")
    return found


def test_what_agents_play_is_what_was_sampled(pythons: dict[str, str], own_place: Any, long_model: str) -> None:
    program = {name: words.split() for name, words in AGENT.items()}
    command = {name: [pythons[PACKAGE[name]], str(AGENTS / words[0]), *words[1:]] for name, words in program.items()}
    limits = {"time_limit": 300, "processes": 4, "answer": "stdout"}
    harness = {name: {"use": "command", "options": {"command": words, **limits}} for name, words in command.items()}
    environment = {"tools": [], "rewards": ["exact"], "max_turns": 4}
    rows = [
        {"id": name, "prompt": f"What is {index} + 3?", "answer": f"{index + 3}", "environment": name}
        for index, name in enumerate(AGENT)
    ]
    (own_place.folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    changes = {
        "model": {"path": long_model},
        "data": {"train": {"use": "jsonl", "options": {"path": "tasks.jsonl"}}, "eval": None},
        "environments": {"default": None, **{name: {**environment, "harness": it} for name, it in harness.items()}},
        "rollout": {"max_episode_tokens": 30000},
        "algorithm": {"group_size": 2},
        "trainer": {"steps": 1, "prompts_per_step": len(rows)},
    }
    run = own_place.train(changes)
    (line,) = run.metrics_lines("train")
    episodes = [it.episode for it in run.episodes()]

    assert len(episodes) == 2 * len(rows)
    assert not [it.failure for it in episodes if it.failure]
    assert 0 < line.metrics["logprob_mismatch/max"] <= 1e-5
    many = {(it.environment, len(it.trajectories)) for it in episodes}
    assert {(name, count) for name, count in many if name in APPEND_ONLY} == {(name, 1) for name in APPEND_ONLY}
    assert {("summary", 2), ("langgraph", 3)} <= many
