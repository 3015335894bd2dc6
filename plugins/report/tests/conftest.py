"""The runs that core's tests of the run folder are made of, with their pages."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.runs.folder import RunFolder
from toolrl_plugin_report.page import write_report

_SAMPLES = runpy.run_path(str(Path(__file__).parents[3] / "core" / "tests" / "runs" / "conftest.py"))
make_episode = _SAMPLES["make_episode"]


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., RunFolder]:
    def make(name: str = "r", *given: Any, **more: Any) -> RunFolder:
        folder: RunFolder = _SAMPLES["build_run"](tmp_path / name, *given, **more)
        write_report(folder)
        return folder

    return make
