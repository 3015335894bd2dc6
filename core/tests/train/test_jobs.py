"""What the commands do with an assembled run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from toolrl import jobs
from toolrl.config.model import SftConfig
from toolrl.errors import ConfigError
from toolrl.report.folder import RunFolder
from toolrl.testing.fakes import make_episode
from toolrl.types import RewardEntry


def a_run(directory: Path, *kinds: str) -> str:
    """A run with one episode of each kind, which says the kind and is worth 1."""
    folder = RunFolder.create(directory, {}, total_steps=1)
    for step, kind in enumerate(kinds):
        folder.episode_store.add(make_episode(kind, rewards=[RewardEntry(None, "reward:r", 1.0)]))
        folder.episode_store.close_step(step, kind)
    folder.close()
    return str(directory)


def demonstrations(run: str) -> Any:
    settings = SftConfig.model_validate({"from_run": run})
    assembly: Any = SimpleNamespace(config=SimpleNamespace(sft=settings, seed=0))
    return jobs._demonstrations(assembly)


def test_demonstrations_from_a_run_leave_its_evaluations_out(tmp_path: Path) -> None:
    source = demonstrations(a_run(tmp_path / "run", "eval", "train", "eval", "rollout"))
    taken = asyncio.run(source.take(0, 8))
    assert {item.ids for item in taken} == {make_episode("train").ids, make_episode("rollout").ids}


def test_a_run_of_evaluations_only_holds_no_demonstration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no episode of .* has a reward of 1 or more; those of evaluations"):
        demonstrations(a_run(tmp_path / "run", "eval"))
