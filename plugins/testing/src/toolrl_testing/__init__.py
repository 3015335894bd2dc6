"""For plugin authors: contracts that every component of a kind keeps, and fakes to test against."""

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
