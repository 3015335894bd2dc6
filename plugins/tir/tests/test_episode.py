"""Whole episodes: a fence opens, the code runs, the result stands in the turn, an answer ends it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from toolrl.errors import ToolError
from toolrl.parsing import EndFlags
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Decoded, Episode, ToolCall, ToolSpec
from toolrl_plugin_tir.parser import TirParser
from toolrl_testing.fakes import FakeChatFormat, RecordingToolset, ScriptedEngine, make_task

TICKS = 0x110100


class TicksAreOneToken(FakeChatFormat):
    """Three backticks are one token, which opens and closes."""

    def inline(self, text: str) -> tuple[int, ...]:
        pieces = [tuple(map(ord, piece)) for piece in text.split("```")]
        return tuple(number for piece in pieces for number in (TICKS, *piece))[1:]

    def decode(self, ids: Sequence[int]) -> Decoded:
        decoded = [super(TicksAreOneToken, self).decode([i]).text if i != TICKS else "```" for i in ids]
        offsets = [0]
        for piece in decoded:
            offsets.append(offsets[-1] + len(piece))
        return Decoded("".join(decoded), tuple(offsets))


def run_code(call: ToolCall) -> str:
    if "boom" in str(call.arguments):
        raise ToolError("NameError: boom")
    return "42"


def play(script: Sequence[str], chat: FakeChatFormat | None = None) -> tuple[Episode, ScriptedEngine, RecordingToolset]:
    chat = chat or FakeChatFormat()
    python = ToolSpec("python", "Runs code.", {"type": "object", "properties": {"code": {"type": "string"}}})
    toolset = RecordingToolset(run_code, tools=(python, ToolSpec("calculator", "Calculates.")))
    environment = Environment(
        "default", TirParser(), chat, ToolBox([ToolEntry("tools", toolset)]), end_flags=EndFlags(["boxed"]), max_turns=6
    )
    engine = ScriptedEngine(script, chat)

    async def main() -> Episode:
        plan = EpisodePlan(make_task(), "group", 0, seed=1)
        return await EpisodeRun(plan, environment, engine, Limits(max_turn_tokens=200, max_episode_tokens=2000)).run()

    return asyncio.run(main()), engine, toolset


def text_of(chat: FakeChatFormat, ids: Sequence[int]) -> str:
    return "".join(chat.decode([number]).text for number in ids)


@pytest.mark.parametrize("chat", [FakeChatFormat(), TicksAreOneToken()])
def test_code_runs_inside_the_turn(chat: FakeChatFormat) -> None:
    script = ["Let me see.\n``` and more", "python\nprint(6*7)\n``` and more", "So it is \\boxed{42}."]
    episode, engine, toolset = play(script, chat)
    assert episode.failure is None
    assert (episode.stop_reason, episode.answer) == ("answer", "42")
    assert toolset.count("call") == 1
    first, second = episode.turns
    assert [segment.text for segment in first.segments] == [
        "Let me see.\n```python\nprint(6*7)\n```",
        "\n```output\n42\n```\n",
    ]
    assert [record.call.arguments for record in first.calls] == [{"code": "print(6*7)"}]
    assert second.text == "So it is \\boxed{42}."
    # What the model wrote is trained on, what the tool wrote is not.
    sampled = [number for number, mask in zip(episode.ids, episode.loss_mask, strict=True) if mask]
    given = [number for number, mask in zip(episode.ids, episode.loss_mask, strict=True) if not mask]
    assert text_of(chat, sampled[:-1]) == first.text + second.text
    assert text_of(chat, given).endswith("\n```output\n42\n```\n")
    # The prompt of each generation is what came before it, token for token.
    assert [generated.prompt for generated in engine.generated] == [
        episode.ids[: len(generated.prompt)] for generated in engine.generated
    ]
    # A call's tokens are those of its fence.
    start, end = first.items[0].tokens
    assert text_of(chat, episode.ids[start:end]) == "```python\nprint(6*7)\n```"


def test_stops_follow_the_text() -> None:
    _, engine, _ = play(["```", "python\ns = '```", "'\n```", "\\boxed{1}"])
    everything = ("```", "~~~", "</python>", "</calculator>", "</think>")
    asked = [generated.sampling.stop for generated in engine.generated]
    assert asked == [everything, ("```", "</think>"), ("```", "</think>"), everything]


@pytest.mark.parametrize("chat", [FakeChatFormat(), TicksAreOneToken()])
def test_a_fence_that_is_no_call_goes_on(chat: FakeChatFormat) -> None:
    script = ["Data:\n```", "json\n{}\n```", "\nand <calculator>6*7</calculator>!", "\\boxed{42}"]
    episode, _, toolset = play(script, chat)
    assert toolset.events[-3:-1] == [("call", "calculator"), ("reward", "group#0")]
    assert [len(turn.calls) for turn in episode.turns] == [1, 0]
    assert episode.turns[0].segments[0].text == "Data:\n```json\n{}\n```\nand <calculator>6*7</calculator>"
    assert episode.stop_reason == "answer"


def test_errors_are_answered_in_the_turn() -> None:
    script = ["```", "python print(1)```", "```", "python\nboom()\n```", "</calculator>", "\\boxed{1}"]
    episode, _, toolset = play(script)
    results = [record.result.text for turn in episode.turns for record in turn.calls]
    assert [text.partition(".")[0] for text in results] == [
        "Code stands on the line that opens its fence",
        "NameError: boom",
        "</calculator> closes nothing: there is no <calculator> before it",
    ]
    assert episode.turns[0].segments[1].text == f"\n````output\n{results[0]}\n````\n"  # it shows a fence
    assert toolset.count("call") == 1
    assert episode.stop_reason == "answer"


def test_what_stands_in_thinking_is_a_draft() -> None:
    script = [
        "<think>```",
        "python\nx\n```\n<calculator>1</calculator></think> x",
        "<calculator>2</calculator>",
        "\\boxed{1}",
    ]
    episode, engine, _ = play(script)
    assert [record.call.raw for record in episode.calls] == ["<calculator>2</calculator>"]
    assert engine.generated[1].sampling.stop == ("</think>",)
    assert episode.turns[0].reasoning == "```python\nx\n```\n<calculator>1</calculator>"


def test_a_result_behind_an_end_mark_is_a_message() -> None:
    episode, _, _ = play(["<calculator>6*7</CALCULATOR>", "\\boxed{42}"])
    assert [segment.origin for segment in episode.turns[0].segments] == ["model"]
    assert [message.role for message in episode.messages][-3:] == ["assistant", "tool", "assistant"]
    assert episode.answer == "42"
