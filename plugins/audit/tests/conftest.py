"""Clean dumps of each system, written as its own code writes them, for tests to break."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

dumps = runpy.run_path(str(Path(__file__).parent / "support" / "dumps.py"))


@pytest.fixture(params=["toolrl", "verl", "trl", "prime", "prime_trace"])
def system(request: pytest.FixtureRequest) -> str:
    """Each format."""
    return str(request.param)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """`write(system, change)`: a dump of two steps, four groups of four rollouts each; `change` edits the records."""

    made: list[Path] = []

    def make(name: str, change: Callable[[list[dict[str, Any]]], Any] = lambda records: None) -> Path:
        folder = tmp_path / str(len(made)) / name
        made.append(folder)
        dumps[f"write_{name}"](folder, change)
        return folder

    return make


@pytest.fixture
def faults() -> dict[str, dict[str, Callable[[list[dict[str, Any]]], Any]]]:
    """By check, the functions that break a format's records."""
    found: dict[str, Any] = dumps["FAULTS"]
    return found
