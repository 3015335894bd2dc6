"""The reasoning-gym plugin keeps the contracts of a plugin."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from toolrl.types import Episode
from toolrl_testing import PluginContract

CARRIED = {"reasoning_gym": {"generator": "chain_sum", "config": {"seed": 0, "size": 1}, "index": 0}}


class TestContract(PluginContract):
    plugin = "reasoning-gym"

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        if kind in ("datasets", "rewards") and importlib.util.find_spec("reasoning_gym") is None:
            pytest.skip("reasoning_gym isn't installed")
        return {"generators": ["chain_sum", "coin_flip"], "size": 20} if kind == "datasets" else {"form": "text"}

    def episodes(self) -> Sequence[Episode]:
        return [replace(episode, task=replace(episode.task, extra=CARRIED)) for episode in super().episodes()]
