"""pytest fixtures for plugin authors, there in every environment that has this package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolrl.protocols import BuildContext
from toolrl.types import Episode
from toolrl_testing import fakes


@pytest.fixture
def build_context(tmp_path: Path) -> BuildContext:
    """The context that a component is built with; its run folder is a temporary one."""
    return fakes.make_build_context(run_dir=tmp_path)


@pytest.fixture
def finished_episode() -> Callable[..., Episode]:
    """Makes a finished episode: `finished_episode("I think it's 4.", answer="4")`."""
    return fakes.make_episode
