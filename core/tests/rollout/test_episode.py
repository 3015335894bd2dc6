"""The episode state machine: what ends an episode, what is answered, what the tokens are, who is blamed."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from toolrl.errors import ExactnessError, ToolError
from toolrl.parsing.flags import EndFlags
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.episode import EpisodePlan, EpisodeRun, State
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import (
    CallError,
    CallRecord,
    Episode,
    Generation,
    Message,
    ParsedTurn,
    Score,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from toolrl_testing.fakes import FakeChatFormat, FixedReward, RecordingToolset, ScriptedEngine, make_task

CALL = '<call>{"name": "echo", "arguments": {}}</call>'
UNKNOWN = '<call>{"name": "nothing", "arguments": {}}</call>'
WRONG = '<call>{"name": "echo", "arguments": {"n": "x"}}</call>'
LIMITS = Limits(max_turn_tokens=200, max_episode_tokens=2000)


@dataclass
class TagParser:
    """`<call>JSON</call>`; what is no JSON is an error. With `inline`, results stand inside the turn."""

    inline: bool = False
    raises: bool = False

    def stops(self, turn_text: str) -> Sequence[str]:
        return ("</call>",) if self.inline else ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        if self.raises:
            raise ValueError("parser is broken")
        items: list[ToolCall | CallError] = []
        for match in re.finditer(r"<call>(.*?)</call>", text):
            try:
                call = json.loads(match[1])
                items.append(ToolCall(call["name"], call["arguments"], span=match.span(), raw=match[0]))
            except ValueError:
                items.append(CallError("invalid_json", "That is no JSON.", span=match.span(), raw=match[0]))
        content = re.sub(r"<call>.*?</call>", "", text)
        status = "calls" if items else "continue" if text.endswith("<more>") else "final"
        return ParsedTurn(tuple(items), content, status=status)

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message] | str:
        if self.inline:
            return "".join(f"[{record.result.text}]" for record in records)
        return [Message("tool", r.result.text, tool_call_id=r.call.id, name=r.call.name) for r in records]


class Correct:
    """Judges whether the last turn says `right`."""

    async def score(self, episode: Episode) -> Score:
        right = float("right" in episode.final_text)
        return Score(right, metrics={"correct": right})


def environment(toolset: Any = None, parser: TagParser | None = None, **fields: Any) -> Environment:
    entries = [ToolEntry("echo", toolset if toolset is not None else RecordingToolset())]
    fields.setdefault("rewards", (NamedReward("correct", Correct()),))
    return Environment("default", parser or TagParser(), FakeChatFormat(), ToolBox(entries), **fields)


def play(
    script: Sequence[str] | Callable[[str], str],
    env: Environment | None = None,
    *,
    limits: Limits = LIMITS,
    task: Task | None = None,
    engine: Any = None,
) -> tuple[Episode, Any]:
    engine = engine or ScriptedEngine(script)
    plan = EpisodePlan(task or make_task(), "group", 0, seed=1)

    async def main() -> Episode:
        run = EpisodeRun(plan, env or environment(), engine, limits)
        episode = await run.run()
        assert run.state is State.RELEASED
        return episode

    return asyncio.run(main()), engine


def test_a_call_is_answered_and_the_answer_ends_the_episode() -> None:
    toolset = RecordingToolset(lambda call: "42")
    episode, engine = play([CALL, "right"], environment(toolset))
    assert episode.stop_reason == "final"
    assert [message.role for message in episode.messages] == ["user", "assistant", "tool", "assistant"]
    assert episode.messages[2].content == "42"
    assert episode.calls[0].call.id == "call_1"
    assert episode.reward == 1.0
    assert episode.correct == 1.0
    assert toolset.count("open") == toolset.count("close") == 1
    assert engine.closed == ["group#0"]


def test_tokens_are_those_that_the_engine_saw_and_sampled() -> None:
    episode, engine = play([CALL, CALL, "right"])
    rebuilt: list[int] = []
    for generated in engine.generated:
        assert generated.prompt[: len(rebuilt)] == tuple(rebuilt)
        rebuilt = [*generated.prompt, *generated.generation.ids]
    assert episode.ids == tuple(rebuilt)
    sampled = [i for i, bit in zip(episode.ids, episode.loss_mask, strict=True) if bit]
    assert sampled == [i for generated in engine.generated for i in generated.generation.ids]
    assert len(episode.ids) == len(episode.loss_mask) == len(episode.logprobs) == len(episode.weight_versions)
    assert {v for v, bit in zip(episode.weight_versions, episode.loss_mask, strict=True) if not bit} == {-1}
    assert episode.prompt_length == len(engine.generated[0].prompt)


def test_each_token_keeps_the_route_that_was_recorded_first() -> None:
    class Records(ScriptedEngine):
        async def generate(self, prompt: Sequence[int], *args: Any, **kwargs: Any) -> Generation:
            generation = await super().generate(prompt, *args, **kwargs)
            count = len(prompt) + len(generation.ids) - 1
            return replace(generation, routes=bytes([len(self.generated)]) * count)

    episode, engine = play([], engine=Records([CALL, "right"]))
    first, second = (len(it.prompt) + len(it.generation.ids) - 1 for it in engine.generated)
    assert episode.routes == b"\1" * first + b"\2" * (second - first)
    assert second == len(episode.ids) - 1
    assert play(["right"])[0].routes is None


def test_sampling_masks_are_joined_and_may_not_be_missing() -> None:
    class Records(ScriptedEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> Generation:
            generation = await super().generate(*args, **kwargs)
            return replace(generation, sampling_masks=bytes([len(self.generated)]) * 2)

    limits = Limits(512, 100_000, top_k=5, keep_masks=True)
    episode, engine = play([], engine=Records([CALL, "right"]), limits=limits)
    assert episode.main.sampling_masks == b"\1\1\2\2"
    assert all(it.sampling.keep_masks and it.sampling.top_k == 5 for it in engine.generated)
    failure = play(["right"], limits=limits)[0].failure
    assert failure is not None
    assert (failure.fault, "records no sampling masks" in failure.message) == ("engine", True)


def test_a_bad_call_between_two_good_ones_is_answered_in_order() -> None:
    toolset = RecordingToolset(lambda call: "ok")
    episode, _ = play([f"{CALL}<call>oops</call>{CALL}", "right"], environment(toolset))
    answers = [message for message in episode.messages if message.role == "tool"]
    assert [message.tool_call_id for message in answers] == ["call_1", "call_2", "call_3"]
    assert [record.result.error for record in episode.calls] == [None, "malformed", None]
    assert toolset.count("call") == 2


def test_spans_lead_from_a_call_to_its_tokens() -> None:
    episode, _ = play([f"ab{CALL}c", "right"])
    start, end = episode.turns[0].items[0].tokens or (0, 0)
    assert "".join(map(chr, episode.ids[start:end])) == CALL


@pytest.mark.parametrize(
    ("script", "limits", "fields", "reason"),
    [
        (["right"], LIMITS, {}, "final"),
        (["<answer>4</answer>"], LIMITS, {"end_flags": EndFlags(["answer"])}, "answer"),
        ([CALL] * 9, LIMITS, {"max_turns": 3}, "max_turns"),
        (["x" * 500], LIMITS, {}, "max_tokens"),
        ([CALL, "x" * 500], Limits(200, 120), {}, "context_full"),
        (["right"], Limits(200, 5), {}, "context_full"),
    ],
)
def test_stop_reasons(script: list[str], limits: Limits, fields: dict[str, Any], reason: str) -> None:
    episode, _ = play(script, environment(**fields), limits=limits)
    assert episode.stop_reason == reason
    assert episode.failure is None
    assert len(episode.ids) <= max(limits.max_episode_tokens, episode.prompt_length)


@pytest.mark.parametrize(
    ("script", "turns", "reason"),
    [
        (["<call>{</call>", UNKNOWN, "right"], 2, "invalid_calls"),
        ([UNKNOWN, CALL, WRONG, f"{CALL}{UNKNOWN}", UNKNOWN, "right"], 6, "final"),
        ([WRONG, UNKNOWN], 2, "invalid_calls"),
    ],
)
def test_turns_in_a_row_without_a_valid_call_end_the_episode(script: list[str], turns: int, reason: str) -> None:
    def fail(call: ToolCall) -> str:
        raise ToolError("it has crashed")  # Not the model's fault.

    tools = (ToolSpec("echo", "", {"type": "object", "properties": {"n": {"type": "integer"}}}),)
    episode, _ = play(script, environment(RecordingToolset(fail, tools), max_invalid_turns=2, max_turns=9))
    assert (len(episode.turns), episode.stop_reason, episode.failure) == (turns, reason, None)
    assert "reward:correct" in {entry.source for entry in episode.rewards}, "it is scored as any other"


def test_calls_of_the_last_turn_still_run() -> None:
    toolset = RecordingToolset(lambda call: ToolResult("ok", reward=0.5))
    episode, _ = play([CALL, CALL], environment(toolset, max_turns=2, rewards=()))
    assert toolset.count("call") == 2
    assert [(entry.turn, entry.source) for entry in episode.rewards] == [(0, "step:echo"), (1, "step:echo")]


def test_rewards_add_up_with_their_weights_and_the_cost_of_calls() -> None:
    toolset = RecordingToolset(lambda call: ToolResult("ok", reward=0.25), reward=2.0)
    rewards = (NamedReward("correct", Correct(), 3.0), NamedReward("fixed", FixedReward(0.5)))
    episode, _ = play([CALL, "right"], environment(toolset, rewards=rewards, call_cost=0.1))
    assert episode.reward == pytest.approx(0.25 - 0.1 + 2.0 + 3.0 + 0.5)


def test_a_tools_error_is_text_and_no_failure() -> None:
    def broken(call: ToolCall) -> str:
        raise ToolError("the disk is full")

    episode, _ = play([CALL, "right"], environment(RecordingToolset(broken)))
    assert episode.failure is None
    assert "the disk is full" in episode.messages[2].content


class BrokenReward:
    async def score(self, episode: Episode) -> Score:
        raise KeyError("gold")


class BrokenEngine(ScriptedEngine):
    async def generate(self, *args: Any, **kwargs: Any) -> Generation:
        raise RuntimeError("out of memory")


@pytest.mark.parametrize(
    ("env", "engine", "fault"),
    [
        (environment(rewards=(NamedReward("b", BrokenReward()),)), None, "reward"),
        (environment(parser=TagParser(raises=True)), None, "parser"),
        (environment(RecordingToolset(fails=frozenset({"open"}))), None, "tool"),
        (environment(), BrokenEngine(["x"]), "engine"),
    ],
)
def test_a_failure_is_attributed_and_everything_released(env: Environment, engine: Any, fault: str) -> None:
    episode, engine = play(["right"], env, engine=engine)
    assert episode.failure is not None
    assert episode.failure.fault == fault
    assert episode.failure.traceback
    assert episode.stop_reason == "error"
    assert engine.closed == ["group#0"]


class Gives(ScriptedEngine):
    """Samples the same, whatever it is asked for."""

    def __init__(self, generation: Generation) -> None:
        super().__init__(["x"])
        self._given = generation

    async def generate(self, *args: Any, **kwargs: Any) -> Generation:
        return self._given


@pytest.mark.parametrize(
    ("generation", "said"),
    [
        (Generation((1, 2), (-0.5,), "stop", versions=(0, 0)), "2 ids"),
        (Generation((1,) * 201, (-0.5,) * 201, "length", versions=(0,) * 201), "201 tokens with finish 'length'"),
    ],
)
def test_an_inexact_engine_stops_the_run(generation: Generation, said: str) -> None:
    with pytest.raises(ExactnessError, match=said):
        play(["x"], engine=Gives(generation))


def test_a_stop_without_a_token_after_which_a_turn_goes_on_stops_the_run() -> None:
    class Fence(TagParser):
        def stops(self, turn_text: str) -> Sequence[str]:
            return ("<more>",)

    class Inexact(ScriptedEngine):
        async def generate(self, *args: Any, **kwargs: Any) -> Generation:
            if not self.calls:
                return await super().generate(*args, **kwargs)
            return Generation((), (), "stop", "<more>", versions=())

    with pytest.raises(ExactnessError, match="0 tokens with finish 'stop'"):
        play(["a<more>"], environment(parser=Fence()), engine=Inexact(["a<more>"]))


async def test_cancelling_releases_tools_and_session() -> None:
    toolset = RecordingToolset(delay=60)
    engine = ScriptedEngine([CALL])
    task = asyncio.create_task(
        EpisodeRun(EpisodePlan(make_task(), "group", 0, 1), environment(toolset), engine, LIMITS).run()
    )
    async with asyncio.timeout(60):
        while not toolset.count("call"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert toolset.count("close") == 1
    assert engine.closed == ["group#0"]


def test_inline_results_stand_inside_the_turn() -> None:
    parser = TagParser(inline=True)
    episode, engine = play([CALL, "right"], environment(RecordingToolset(lambda c: "7"), parser=parser))
    second = "".join(map(chr, engine.generated[1].prompt[-len(CALL) - 3 :]))
    assert second == f"{CALL}[7]"
    assert [segment.origin for segment in episode.turns[0].segments] == ["model", "tool"]
    assert "[7]" not in episode.model_text
    assert [message.role for message in episode.messages][-3:] == ["assistant", "tool", "assistant"]


def test_an_inline_result_never_follows_an_end_mark_and_is_not_lost() -> None:
    class NoStops(TagParser):
        def stops(self, turn_text: str) -> Sequence[str]:
            return ()

    plain, _ = play([CALL, "right"], environment())
    episode, engine = play([CALL, "right"], environment(parser=NoStops(inline=True)))
    assert episode.stop_reason == plain.stop_reason
    assert engine.calls == 2
    assert episode.ids == plain.ids  # a message after the end mark, as from a parser without inline results
    assert [segment.origin for segment in episode.turns[0].segments] == ["model"]


def test_continue_goes_on_in_the_same_turn() -> None:
    class Fence(TagParser):
        def stops(self, turn_text: str) -> Sequence[str]:
            return () if "<more>" in turn_text else ("<more>",)

    episode, engine = play(["a<more>", "right"], environment(parser=Fence()))
    assert engine.calls == 2
    assert len(episode.turns) == 1
    assert episode.turns[0].text == "a<more>right"


@pytest.mark.parametrize("reason", ["max_tokens", "context_full"])
@pytest.mark.parametrize(("stop", "flags"), [("<more>", EndFlags(())), ("</answer>", EndFlags(("answer",), stop=True))])
def test_a_budget_that_ends_at_a_stop_string_which_ends_nothing_cuts_the_turn(
    reason: str, stop: str, flags: EndFlags
) -> None:
    class Fence(TagParser):
        def stops(self, turn_text: str) -> Sequence[str]:
            return () if flags.names else ("<more>",)

        def parse(self, text: str, **given: Any) -> ParsedTurn:
            return ParsedTurn(reasoning=text) if flags.names else super().parse(text, **given)

    env, script = environment(parser=Fence(), end_flags=flags), ["a" + stop, "right"]
    whole, tokens = play(script, env)[0], len("a" + stop)
    assert (whole.stop_reason, whole.turns[0].finish) == ("final", "stop"), "with room it reads on"
    limits = replace(LIMITS, max_turn_tokens=tokens)
    if reason == "context_full":
        limits = replace(LIMITS, max_episode_tokens=whole.prompt_length + tokens)
    episode, engine = play(script, env, limits=limits)
    assert (engine.calls, episode.turns[0].text) == (1, "a" + stop)
    assert (episode.stop_reason, episode.turns[0].finish) == (reason, "length")


def test_an_aborted_generation_ends_the_episode_as_such() -> None:
    episode, _ = play(["x"], engine=Gives(Generation((ord("x"),), (-0.5,), "abort", versions=(0,))))
    assert episode.stop_reason == "aborted"
    assert episode.failure is None
