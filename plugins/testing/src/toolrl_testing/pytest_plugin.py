"""pytest fixtures for plugin authors, there in every environment that has this package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from toolrl.plugins.registry import Registry, load_registry
from toolrl.protocols import BuildContext, EpisodeContext
from toolrl.types import Episode
from toolrl_testing import fakes


@pytest.fixture(scope="session")
def toolrl_registry() -> Registry:
    """The registry of all installed plugins, read once."""
    return load_registry()


@pytest.fixture
def fake_chat_format() -> fakes.FakeChatFormat:
    """A chat format without a tokenizer: one token a character."""
    return fakes.FakeChatFormat()


@pytest.fixture
def scripted_engine(fake_chat_format: fakes.FakeChatFormat) -> Callable[..., fakes.ScriptedEngine]:
    """Makes an engine that says given texts: `scripted_engine(["first turn", "second turn"], latency=0.01)`."""
    return lambda script, **settings: fakes.ScriptedEngine(script, **{"chat": fake_chat_format, **settings})


@pytest.fixture
def episode_context() -> EpisodeContext:
    """The context of one episode's tools."""
    return fakes.make_episode_context()


@pytest.fixture
def build_context(tmp_path: Path) -> BuildContext:
    """The context that a component is built with; its run folder is a temporary one."""
    return fakes.make_build_context(run_dir=tmp_path)


@pytest.fixture
def finished_episode() -> Callable[..., Episode]:
    """Makes a finished episode: `finished_episode("I think it's 4.", answer="4")`."""
    return fakes.make_episode
