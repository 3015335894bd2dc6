"""pytest fixtures for plugin authors, there in every environment that has toolrl.

pytest imports this module at each of its starts, also where no test is about toolrl: everything else is imported by the
fixture that needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolrl.plugins.registry import Registry
    from toolrl.protocols import BuildContext, EpisodeContext
    from toolrl.types import Episode
    from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine


@pytest.fixture(scope="session")
def toolrl_registry() -> Registry:
    """The registry of all installed plugins, read once."""
    from toolrl.plugins.registry import load_registry

    return load_registry()


@pytest.fixture
def fake_chat_format() -> FakeChatFormat:
    """A chat format without a tokenizer: one token a character."""
    from toolrl_testing.fakes import FakeChatFormat

    return FakeChatFormat()


@pytest.fixture
def scripted_engine(fake_chat_format: FakeChatFormat) -> Callable[..., ScriptedEngine]:
    """Makes an engine that says given texts: `scripted_engine(["first turn", "second turn"], latency=0.01)`."""
    from toolrl_testing.fakes import ScriptedEngine

    def make(script: Any, **settings: Any) -> ScriptedEngine:
        return ScriptedEngine(script, settings.pop("chat", fake_chat_format), **settings)

    return make


@pytest.fixture
def episode_context() -> EpisodeContext:
    """What the tools of one episode share."""
    from toolrl_testing.fakes import make_episode_context

    return make_episode_context()


@pytest.fixture
def build_context(tmp_path: Any) -> BuildContext:
    """What a component is built with; its run folder is a temporary one."""
    from toolrl_testing.fakes import make_build_context

    return make_build_context(run_dir=tmp_path)


@pytest.fixture
def finished_episode() -> Callable[..., Episode]:
    """Makes a finished episode: `finished_episode("I think it's 4.", answer="4")`."""
    from toolrl_testing.fakes import make_episode

    return make_episode
