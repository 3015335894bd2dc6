"""For plugin authors: contracts that every component of a kind keeps, fakes to test against, and pytest fixtures.

Names are imported when they are first asked for, so that pytest's start imports none of them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolrl_testing.contracts import PluginContract
    from toolrl_testing.fakes import (
        CharTokenizer,
        FakeChatFormat,
        FakeWeights,
        FixedReward,
        RecordingToolset,
        ScriptedEngine,
        make_build_context,
        make_episode,
        make_episode_context,
        make_task,
    )

_MODULES = {
    "PluginContract": "contracts",
    "CharTokenizer": "fakes",
    "FakeChatFormat": "fakes",
    "FakeWeights": "fakes",
    "FixedReward": "fakes",
    "RecordingToolset": "fakes",
    "ScriptedEngine": "fakes",
    "make_build_context": "fakes",
    "make_episode": "fakes",
    "make_episode_context": "fakes",
    "make_task": "fakes",
}

__all__ = [
    "CharTokenizer",
    "FakeChatFormat",
    "FakeWeights",
    "FixedReward",
    "PluginContract",
    "RecordingToolset",
    "ScriptedEngine",
    "make_build_context",
    "make_episode",
    "make_episode_context",
    "make_task",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
