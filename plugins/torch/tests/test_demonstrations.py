"""Demonstrations: their tokens are those of an episode with the same conversation, and the mask is on what was said."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from toolrl.errors import DataError
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import CallRecord, Message, ParsedTurn, RewardEntry, Task, ToolCall, ToolSpec
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration, encode_task, from_episodes
from toolrl_testing import FakeChatFormat, RecordingToolset, ScriptedEngine, make_task
from toolrl_testing.fakes import FakeParser

CHAT = FakeChatFormat()
CALL = '<tool_call>\n{"name": "echo", "arguments": {}}\n</tool_call>'


class OneCall(FakeParser):
    """A turn that holds the call makes it."""

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        if CALL not in text:
            return ParsedTurn(content=text)
        call = ToolCall("echo", {}, span=(text.index(CALL), len(text)), raw=CALL)
        return ParsedTurn((call,), content=text[: text.index(CALL)], status="calls")


class Inside(OneCall):
    """Results stand inside the turn."""

    def stops(self, turn_text: str) -> Sequence[str]:
        return ("</tool_call>",)

    def render_results(self, records: Sequence[CallRecord]) -> str:
        return "".join(f"\n[{record.result.text}]\n" for record in records)


def environments(parser: FakeParser | None = None, **settings: Any) -> dict[str, Environment]:
    tools = ToolBox([ToolEntry("echo", RecordingToolset())])
    return {"default": Environment("default", parser or OneCall(), CHAT, tools, **settings)}


def conversation(*messages: Message, **fields: Any) -> Task:
    return Task("demo", (Message("user", "Say ok."), *messages), **fields)


TURNS = (
    Message("assistant", "Let me ask. ", tool_calls=(ToolCall("echo", {}),)),
    Message("tool", "ok", name="echo"),
    Message("assistant", "It said ok."),
)


@pytest.mark.parametrize("parser", [OneCall(), Inside()], ids=["messages", "inside"])
@pytest.mark.parametrize("system_prompt", [None, "Be brief."])
def test_a_demonstration_has_the_tokens_of_such_an_episode(system_prompt: str | None, parser: FakeParser) -> None:
    rooms = environments(parser, system_prompt=system_prompt)
    demonstration = asyncio.run(encode_task(conversation(*TURNS), rooms))
    plan = EpisodePlan(make_task("Say ok."), "group", 0, 0)
    engine = ScriptedEngine([f"Let me ask. {CALL}", "It said ok."], CHAT)
    limits = Limits(max_turn_tokens=200, max_episode_tokens=2000)
    episode = asyncio.run(EpisodeRun(plan, rooms["default"], engine, limits).run())
    assert episode.failure is None
    assert demonstration.ids == episode.ids
    assert demonstration.loss_mask == episode.loss_mask
    thanks = conversation(*TURNS, Message("user", "Thanks."))
    assert asyncio.run(encode_task(thanks, rooms)) == demonstration, "nothing is kept after the last assistant message"


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (conversation(), "is no demonstration: it needs a user message and then an assistant message"),
        (
            conversation(Message("assistant", "a"), Message("assistant", "b")),
            "two assistant messages follow each other",
        ),
        (Task("demo", (Message("assistant", "Hello."),)), "got roles .'assistant'"),
        (conversation(*TURNS, environment="moon"), "asks for environment 'moon'"),
    ],
)
def test_what_is_no_demonstration_is_refused(task: Task, says: str) -> None:
    with pytest.raises(DataError, match=says):
        asyncio.run(encode_task(task, environments()))


BOTH = (ToolCall("echo", {}, id="a"), ToolCall("echo", {}, id="b"))


@pytest.mark.parametrize("parser", [OneCall(), Inside()], ids=["messages", "inside"])
def test_answers_are_told_apart_by_the_ids_of_their_calls(parser: FakeParser) -> None:
    """ms-swift#10174: parallel calls whose answers come in another order."""
    said, end = Message("assistant", "Both. ", tool_calls=BOTH), Message("assistant", "ok")
    first, second = Message("tool", "1", tool_call_id="a"), Message("tool", "2", tool_call_id="b")
    tasks = [conversation(said, *answers, end) for answers in ((first, second), (second, first))]
    right, swapped = (asyncio.run(encode_task(task, environments(parser))) for task in tasks)
    assert swapped == right
    with pytest.raises(DataError, match="'demo'.*'z'"):
        asyncio.run(
            encode_task(conversation(said, first, replace(second, tool_call_id="z"), end), environments(parser))
        )


@pytest.mark.parametrize("parser", [OneCall(), Inside()], ids=["messages", "inside"])
def test_a_message_of_weight_0_is_read_and_not_trained_on(parser: FakeParser) -> None:
    rooms = environments(parser)
    whole = asyncio.run(encode_task(conversation(*TURNS), rooms))
    first, second = (
        asyncio.run(encode_task(conversation(*turns), rooms))
        for turns in ((replace(TURNS[0], trained=False), *TURNS[1:]), (*TURNS[:2], replace(TURNS[2], trained=False)))
    )
    assert first.ids == second.ids == whole.ids
    assert any(first.loss_mask)
    assert any(second.loss_mask)
    assert [one + two for one, two in zip(first.loss_mask, second.loss_mask, strict=True)] == list(whole.loss_mask)


@pytest.mark.parametrize(
    ("call", "schema", "selected", "says"),
    [
        (ToolCall("fly", {}), {}, None, "the tool 'fly', which the prompt doesn't show; it shows: look"),
        (ToolCall("look", {"at": 1}), {}, (), "'look', which the prompt doesn't show; it shows: no tools"),
        (ToolCall("look", {"on": 1}), {}, None, "argument 'on', which the tool's schema doesn't have"),
        (ToolCall("look", {"on": 1}), {"additionalProperties": False}, None, "argument 'on'"),
        (ToolCall("look", {"on": 1}), {"additionalProperties": True}, None, None),
        (ToolCall("look", {"at": 1}), {}, None, None),
        (ToolCall("look", {}), {}, None, None),
    ],
)
def test_a_call_that_the_prompt_does_not_show_is_refused(
    call: ToolCall, schema: dict[str, Any], selected: tuple[str, ...] | None, says: str | None
) -> None:
    """prime-rl#2494."""
    spec = ToolSpec("look", "", {"type": "object", "properties": {"at": {}}, **schema})
    tools = ToolBox([ToolEntry("look", RecordingToolset(tools=[spec]))])
    rooms = {"default": Environment("default", OneCall(), CHAT, tools)}
    said = Message("assistant", "Hm.", tool_calls=(call,))
    turns = (said, Message("tool", "ok"), Message("assistant", "ok"))
    if says is not None:
        with pytest.raises(DataError, match=says) as caught:
            asyncio.run(encode_task(conversation(*turns, tools=selected), rooms))
        assert "weight: 0" in (caught.value.hint or "")
        turns = (replace(said, trained=False), *turns[1:])
    assert asyncio.run(encode_task(conversation(*turns, tools=selected), rooms)).ids


def test_good_episodes_are_taken_as_the_tokens_they_are(make_episode: Any) -> None:
    episodes = [
        make_episode((0, 1, 1), reward=1.0),
        make_episode((0, 1), reward=0.5),
        make_episode((0, 1, 0, 1), reward=2.0, failed=True),
        make_episode((0, 0), reward=2.0),
    ]
    assert from_episodes(episodes, 1.0) == [Demonstration((1, 2, 3), (0, 1, 1))]
    assert from_episodes(episodes, 0.5) == [Demonstration((1, 2, 3), (0, 1, 1)), Demonstration((1, 2), (0, 1))]


def test_of_several_players_the_winners_are_taken(make_episode: Any) -> None:
    one, other = make_episode((0, 1)).main, make_episode((0, 1, 1)).main
    rewards = tuple(RewardEntry(None, "reward:won", value, role=role) for role, value in (("a", 1.0), ("b", -1.0)))
    players = (replace(one, role="a"), replace(other, role="b"))
    game = replace(make_episode(rewards=rewards), trajectories=players)
    assert from_episodes([game], 1.0) == [Demonstration((1, 2), (0, 1))]
