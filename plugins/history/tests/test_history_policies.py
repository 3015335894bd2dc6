"""What becomes of histories: old results dropped, summaries by the model, thinking stripped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Episode, Media, Message, ToolCall, ToolResult
from toolrl_plugin_history.options import DropToolOutputOptions, StripThinkingOptions, SummariseOptions
from toolrl_plugin_history.policies import DropToolOutput, StripThinking, Summarise
from toolrl_testing.fakes import (
    FakeChatFormat,
    FakeParser,
    RecordingToolset,
    ScriptedEngine,
    make_build_context,
    make_task,
)

LONG = "r" * 300


def rewritten(policy: Any, messages: Sequence[Message], tokens: int = 900) -> list[Message] | None:
    """By a policy that asks no model, in a trajectory of 1000 tokens."""
    made = asyncio.run(policy.rewrite(messages, (), tokens, 1000))
    return None if made is None else list(made)


# Without the model.


def conversation(*results: str) -> list[Message]:
    """A question, and a call with its answer for each result."""
    messages = [Message("user", "q")]
    for number, result in enumerate(results):
        call = ToolCall("look", {}, id=str(number))
        messages += [Message("assistant", tool_calls=(call,)), Message("tool", result, tool_call_id=call.id)]
    return messages


def test_old_results_of_a_long_history_are_dropped() -> None:
    policy = DropToolOutput(
        DropToolOutputOptions(over_tokens=0.8, keep=1, min_length=10, placeholder="-"), make_build_context()
    )
    messages = conversation(LONG, "short", LONG, LONG)
    messages[4] = Message("tool", "seen", (Media("image", "picture"),), tool_call_id="1")
    assert rewritten(policy, messages, tokens=799) is None
    made = rewritten(policy, messages)
    assert made is not None
    assert [it.content for it in made if it.role == "tool"] == ["-", "-", "-", LONG]
    assert [it.tool_call_id for it in made] == [it.tool_call_id for it in messages]
    assert not any(it.media for it in made)
    assert rewritten(policy, made) is None, "nothing is left to drop"
    assert rewritten(policy, conversation("short", LONG)) is None


def test_thinking_of_earlier_turns_is_stripped() -> None:
    thought = Message("assistant", "a", reasoning="hm")
    said = Message("assistant", "a")
    messages = [Message("user", "q"), thought, Message("user", "q"), thought, Message("tool", "r")]
    policy = StripThinking(None, make_build_context())
    assert rewritten(policy, messages) == [messages[0], said, *messages[2:]]
    assert rewritten(policy, [messages[0], said, *messages[2:]]) is None
    strict = StripThinking(StripThinkingOptions(keep="none"), make_build_context())
    assert rewritten(strict, messages) == [messages[0], said, messages[2], said, messages[4]]


# Summaries.


def episode_of(
    script: Callable[[str], str],
    *,
    limit: int = 600,
    turns: int = 4,
    results: Sequence[str] = ("r" * 100,) * 9,
    untrained: Sequence[str] = (),
    **options: Any,
) -> tuple[Episode, list[str]]:
    """The episode, and what the model read before each turn. It calls a tool wherever it says `c`."""
    chat, left = FakeChatFormat(), list(results)
    engine = ScriptedEngine(script)
    given = SummariseOptions(**{"prompt": "Sum up.", "message": "So far: {summary}", "max_tokens": 20, **options})
    entries = [
        ToolEntry("tools", RecordingToolset(lambda call: ToolResult(left.pop(0)))),
        ToolEntry("summarise", Summarise(given, make_build_context())),
    ]
    parser = FakeParser(lambda text: ["echo"] if "c" in text else [])
    environment = Environment(
        "default", parser, chat, ToolBox(entries), max_turns=turns, untrained_roles=untrained, system_prompt="system"
    )
    run = EpisodeRun(EpisodePlan(make_task("q"), "group", 0, seed=1), environment, engine, Limits(40, limit))
    episode = asyncio.run(run.run())
    assert episode.failure is None
    return episode, [chat.decode(it.prompt).text for it in engine.generated]


def sums_up(prompt: str) -> str:
    """`s1`, then `s2`."""
    if "Sum up." not in prompt[-40:]:
        return "c"
    return "s2" if "s1" in prompt else "s1"


def asked(episode: Episode) -> list[list[int]]:
    """The turns of each trajectory."""
    return [[turn.index for turn in it.turns] for it in episode.trajectories]


def test_the_model_goes_on_from_the_task_and_its_last_summary() -> None:
    episode, _ = episode_of(sums_up, at_tokens=400, turns=8)
    assert asked(episode) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert {it.role for it in episode.trajectories} == {"agent"}
    assert [it.role for it in episode.messages[:3]] == ["system", "user", "assistant"]
    assert episode.messages[1].content == "q\n\nSo far: s2", "the first summary went into the second"
    assert len(episode.calls) == 8
    assert max(len(it.ids) for it in episode.trajectories) <= 600


def test_the_last_turns_stay() -> None:
    episode, _ = episode_of(sums_up, at_tokens=400, keep=1)
    roles = [(it.role, it.content[:10]) for it in episode.main.messages]
    assert roles[1:4] == [("user", "q\n\nSo far:"), ("assistant", "c"), ("tool", "r" * 10)]
    assert episode_of(sums_up, at_tokens=150, keep=9)[0].stop_reason == "max_turns", "nothing is older than these"


def test_results_that_leave_no_room_for_a_question_stay_behind_the_summary() -> None:
    episode, prompts = episode_of(sums_up, limit=500, turns=3, results=("r" * 100, "R" * 250, "r"))
    assert "R" not in prompts[2]
    assert [it.content[:3] for it in episode.main.messages[1:4]] == ["q\n\n", "c", "RRR"]
    assert episode.stop_reason == "max_turns"
    too_long, prompts = episode_of(sums_up, limit=500, results=("R" * 400,))
    assert (too_long.stop_reason, len(prompts)) == ("context_full", 1), "there is nothing to sum up"


@pytest.mark.parametrize("said", ["", "   "])
def test_without_a_summary_the_history_stays(said: str) -> None:
    episode, _ = episode_of(lambda prompt: said if "Sum up." in prompt[-40:] else "c", at_tokens=400, turns=9)
    assert episode.stop_reason == "context_full"
    assert episode.metrics["tool/summarise/rewrites"] == 0.0


def test_calls_in_a_summary_are_not_run() -> None:
    episode, _ = episode_of(lambda prompt: "c", at_tokens=400)
    assert episode.metrics["tool/summarise/rewrites"] == 1.0
    assert len(episode.calls) == 4


def test_another_role_sums_up_untrained() -> None:
    episode, _ = episode_of(sums_up, at_tokens=400, limit=1000, role="summariser", untrained=["summariser"])
    found = [(it.role, it.trained, len(it.turns)) for it in episode.trajectories]
    assert found == [("agent", True, 3), ("summariser", False, 1), ("agent", True, 1)]
