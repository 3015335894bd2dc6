"""For plugin authors: contracts that every component of a kind keeps, fakes to test against, and pytest fixtures."""

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
