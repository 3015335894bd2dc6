"""Each contract of parsers, rewards, data sets, chat formats, engines, observers, commands and of the plugin itself
fails on a component that breaks it."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ConfigDict, Field

from toolrl import Component
from toolrl.protocols import EpisodeContext, LossTerms, Model, Outcome
from toolrl.types import (
    CallRecord,
    Decoded,
    Episode,
    Generation,
    Group,
    Message,
    ParsedTurn,
    Rendered,
    Sampling,
    Score,
    Task,
    ToolCall,
)
from toolrl_testing.checks import chat_formats, engines, harnesses, others, parsers, rewards, training
from toolrl_testing.checks import plugin as plugins
from toolrl_testing.fakes import END_ID, FakeChatFormat, FakeWeights, make_task


def variant(sound: type, **methods: Any) -> Any:
    """An object of a class with some methods of its own."""
    return type("Broken", (sound,), methods)()


class SoundParser:
    """`!name` is a call."""

    call = re.compile("!([a-z]+)")

    def stops(self, turn_text: str) -> Sequence[str]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        items = tuple(ToolCall(m.group(1), {}, span=m.span(), raw=m.group()) for m in self.call.finditer(text))
        return ParsedTurn(items, self.call.sub("", text), status="calls" if items else "final")

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message] | str:
        return [Message("tool", record.result.text) for record in records]


def refusing(self: SoundParser, text: str, **_: Any) -> ParsedTurn:
    if "{" in text:
        raise ValueError("unexpected {")
    return SoundParser.parse(self, text)


def slow(self: SoundParser, text: str, **_: Any) -> ParsedTurn:
    for start in range(0, len(text), 8):
        text[start:].count("\ufffe")
    return SoundParser.parse(self, text)


def parsed(**methods: Any) -> Callable[[], None]:
    return lambda: parsers.check_total(variant(SoundParser, **methods), ["first !calculator then !search."])


def changed(change: Callable[[ParsedTurn], ParsedTurn]) -> Callable[[], None]:
    """A parser whose turns are changed."""
    return parsed(parse=lambda self, text, **_: change(SoundParser.parse(self, text)))


NUMBERS = itertools.count()
PARSERS = [
    (parsed(parse=refusing), "parse\\(\\) raised ValueError: unexpected {"),
    (
        changed(lambda turn: replace(turn, items=tuple(replace(it, span=(0, 1)) for it in turn.items))),
        "raw is '!calculator', the span holds",
    ),
    (changed(lambda turn: replace(turn, content=str(next(NUMBERS)))), "two different turns"),
    (changed(lambda turn: replace(turn, status="final")), "status is 'final' with 2 items"),
    (parsed(render_results=lambda self, records: "ok" if records else ""), "leaves out 'result 0'"),
    (lambda: parsers.check_linear(variant(SoundParser, parse=slow), ["!search"]), "more than 32 times as long"),
    (lambda: parsers.check_calls_found(SoundParser(), ["nothing here"]), "no call was found"),
]


def scored(score: Callable[[Episode], Any]) -> Callable[[], None]:
    async def of_one(episode: Episode) -> Any:
        return score(episode)

    return lambda: asyncio.run(rewards.check_scores(SimpleNamespace(score=of_one), rewards.sample_episodes()))


def scored_together(made: Callable[[Sequence[Episode]], Any]) -> Callable[[], None]:
    class GroupReward:
        async def score_group(self, episodes: Sequence[Episode]) -> Any:
            return made(episodes)

    return lambda: asyncio.run(rewards.check_scores(GroupReward(), rewards.sample_episodes()))


def _change(episode: Episode) -> Score:
    episode.metrics["seen"] = 1.0  # type: ignore[index]
    return Score(1.0)


REWARDS = [
    (scored(lambda e: 1.0), "gave float 1.0, expected a Score"),
    (scored(lambda e: Score(float("nan"))), "the score is nan"),
    (scored(lambda e: Score(len(e.turns[0].text))), r"raised IndexError.*with 0 turns"),
    (scored(lambda e: Score(1.0, {0: 1.0})), "credit for turn 0, which isn't there"),
    (scored(_change), "changed the episode"),
    (scored_together(lambda episodes: [Score(1.0)]), "expected one for each"),
    (scored_together(lambda episodes: [_change(episode) for episode in episodes]), "changed an episode"),
]


def centred(spoil: Callable[[list[list[Any]]], Any]) -> Callable[[], None]:
    """Rewards less their group's mean, by turn; `spoil` breaks what it says."""

    def advantages(groups: Sequence[Group]) -> Any:
        said = []
        for group in groups:
            mean = sum(e.reward for e in group.scored) / max(len(group.scored), 1)
            said.append([{turn.index: e.reward - mean for turn in e.turns} for e in group.episodes])
        return spoil(said) if groups else said

    return lambda: training.check_advantages(SimpleNamespace(advantages=advantages), training.sample_groups())


def _first(said: list[list[Any]], value: Any) -> list[list[Any]]:
    said[0][0] = value
    return said


def loss(token_losses: Callable[[LossTerms], Any]) -> Callable[[], None]:
    return lambda: training.check_policy_loss(SimpleNamespace(token_losses=token_losses))


TRAINING = [
    (centred(lambda said: said[1:]), "5 entries for 6 groups"),
    (centred(lambda said: _first(said, float("nan"))), "an advantage is nan"),
    (centred(lambda said: _first(said, {0: 1.0})), r"no advantage for turn \[1\]"),
    (loss(lambda terms: terms.logprobs_BT.sum()), "expected"),
    (loss(lambda terms: (terms.logprobs_BT - terms.logprobs_BT.detach()).abs().sqrt()), "gradient is not finite"),
    (loss(lambda terms: 0.0 * terms.logprobs_BT), "all gradients are 0"),
    (loss(lambda terms: terms.logprobs_BT * terms.advantages_BT.mul_(2.0)), "changed its terms"),
]


class Rows:
    def __init__(self, rows: Sequence[Any], extra: Any = None) -> None:
        self.rows = list(rows)
        self.extra = extra

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


class Endless(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.rows[index % len(self.rows)]


GOOD = [make_task(id="a"), make_task(id="b")]
DATA_SETS = [
    (lambda: others.check_rows(Rows([{"id": "a"}])), "row 0 is dict"),
    (lambda: others.check_rows(Rows([GOOD[0], GOOD[0]])), "another row's"),
    (lambda: others.check_rows(Endless(GOOD)), "no IndexError"),
    (lambda: others.check_pickles(Rows(GOOD, extra=lambda: None)), "doesn't pickle"),
]


def keeps_end_mark(self: FakeChatFormat, ids: Sequence[int]) -> Decoded:
    return FakeChatFormat.decode(self, [*ids, END_ID] if ids and ids[-1] == END_ID else ids)


def strips(self: FakeChatFormat, ids: Sequence[int]) -> Decoded:
    decoded = FakeChatFormat.decode(self, ids)
    return replace(decoded, text=decoded.text.strip())


def reads_specials(self: FakeChatFormat, text: str) -> tuple[int, ...]:
    head, mark, tail = text.partition("<|end|>")
    return (*map(ord, head), *((END_ID, *map(ord, tail)) if mark else ()))


def laws(**methods: Any) -> Callable[[], None]:
    return lambda: chat_formats.check_laws(variant(FakeChatFormat, **methods))


def text(**methods: Any) -> Callable[[], None]:
    return lambda: chat_formats.check_text(variant(FakeChatFormat, **methods))


BRIDGE, OPEN = FakeChatFormat.bridge, FakeChatFormat.open
CHAT_FORMATS = [
    (laws(bridge=lambda self, ids, *more: BRIDGE(self, (END_ID,), *more)), "must begin with the end mark"),
    (
        laws(bridge=lambda self, *given: Rendered(BRIDGE(self, *given).ids[:-1])),
        "differs from the conversation opened as a whole",
    ),
    (laws(open=lambda self, messages, tools: OPEN(self, messages, ())), "leaves out the tool 'look_up_word'"),
    (text(decode=keeps_end_mark), "the closing end mark is left out"),
    (text(decode=strips), r"decode\(inline\(' two  spaces '\)\)"),
    (text(inline=reads_specials), "could end the turn"),
]


class Uniform:
    """An engine that counts up from the seed; sound."""

    places = 4

    def __init__(self) -> None:
        self.version = 0
        self.busy = asyncio.Semaphore(self.places)

    async def close(self, session: str) -> None: ...

    async def update_weights(self, weights: Any, version: int) -> None:
        self.version = version

    def first(self, sampling: Sampling, session: str) -> int:
        return 97 + (sampling.seed or 0) if sampling.temperature else 97

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        async with self.busy:
            ids: list[int] = []
            stopped: str | int | None = None
            while len(ids) < sampling.max_new_tokens and stopped is None:
                await asyncio.sleep(0)
                ids.append(self.first(sampling, session) + (len(prompt) + len(ids)) % 20)
                text = "".join(map(chr, ids))
                stopped = next((stop for stop in sampling.stop if stop in text), None)
                stopped = ids[-1] if ids[-1] in sampling.stop_token_ids else stopped
        return self.made(ids, stopped)

    def made(self, ids: list[int], stopped: str | int | None) -> Generation:
        n = len(ids)
        finish = "stop" if stopped is not None else "length"
        return Generation(tuple(ids), (-1.0,) * n, finish, stopped, (self.version,) * n)  # type: ignore[arg-type]


async def ignores_stops(self: Uniform, prompt: Sequence[int], sampling: Sampling, **more: Any) -> Generation:
    return await Uniform.generate(self, prompt, replace(sampling, stop=()), **more)


async def leaks_places(self: Uniform, prompt: Sequence[int], sampling: Sampling, **_: Any) -> Generation:
    await self.busy.acquire()
    generation = self.made([97] * sampling.max_new_tokens, None)
    await asyncio.sleep(0.02 if sampling.max_new_tokens > 50 else 0)
    self.busy.release()
    return generation


async def ignores_versions(self: Uniform, weights: Any, version: int) -> None: ...


PROMPT = tuple(range(3, 19))


def engine(check: Callable[..., Any], *given: Any, **methods: Any) -> Callable[[], None]:
    return lambda: asyncio.run(check(variant(Uniform, **methods), PROMPT, *given))


def one_logprob(self: Uniform, ids: list[int], stopped: str | int | None) -> Generation:
    return replace(Uniform.made(self, ids, stopped), logprobs=(-1.0,))


def drops_stop_token(self: Uniform, ids: list[int], stopped: str | int | None) -> Generation:
    return Uniform.made(self, ids[:-1] if stopped is not None else ids, stopped)


ENGINES = [
    (engine(engines.check_sampling, made=one_logprob), "12 ids and 1 log-probabilities"),
    (engine(engines.check_sampling, first=lambda self, sampling, session: 97 + len(session)), "seed 11 gave"),
    (engine(engines.check_stops, FakeChatFormat(), made=drops_stop_token), "stop id"),
    (engine(engines.check_stops, FakeChatFormat(), generate=ignores_stops), "stop '"),
    (engine(engines.check_sessions, first=lambda self, _, session: 97 + (session == "another")), "in the session"),
    (engine(engines.check_cancel, generate=leaks_places), "a generation is stuck"),
    (engine(engines.check_versions, FakeWeights(), update_weights=ignores_versions), "version 7"),
]


class SoundHarness:
    left: ClassVar[set[Any]] = set()

    async def play(self, task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        return Outcome((await model.ask(task.messages)).content)


async def _asks_nothing(self: SoundHarness, *given: Any) -> Outcome:
    return Outcome("4")


async def _leaves_a_task(self: SoundHarness, task: Task, model: Model, episode: EpisodeContext) -> Outcome:
    self.left.add(asyncio.ensure_future(asyncio.sleep(60)))
    return await SoundHarness.play(self, task, model, episode)


def plays(play: Any) -> Callable[[], None]:
    return lambda: harnesses.check_plays(variant(SoundHarness, play=play), ["4"])


HARNESSES = [
    (plays(_asks_nothing), "play\\(\\) failed: .*without asking the model"),
    (plays(_leaves_a_task), "it left 2 tasks running"),
    (lambda: harnesses.check_cancel(variant(SoundHarness, play=_leaves_a_task)), "it left 1 tasks running"),
]


class AsyncObserver:
    async def toolrl_step_end(self, run: Any, report: Any) -> None: ...


class Misspelled:
    def toolrl_step_ended(self, run: Any, report: Any) -> None: ...


class NoRun:
    def configure(self, parser: argparse.ArgumentParser) -> None: ...


class BadArguments(NoRun):
    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("x", help="100%")

    def run(self, args: argparse.Namespace) -> int:
        return 0


class Open(BaseModel):
    a: int = Field(1, description="a")


class Undescribed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 1


def options(model: str) -> Callable[[], None]:
    component: Component[Any] = Component("x", "toolrl_test_options:x", options=f"toolrl_test_options:{model}")
    return lambda: plugins.check_options(component)


DESCRIPTOR: Component[Any] = Component("x", "m:x", summary="Does x.")
PLUGINS = [
    (lambda: others.check_observer(AsyncObserver()), "async"),
    (lambda: others.check_observer(Misspelled()), "no event"),
    (lambda: others.check_command(NoRun()), r"no run\(args\)"),  # type: ignore[arg-type]
    (lambda: others.check_command(BadArguments()), r"configure\(\) raised"),  # type: ignore[arg-type]
    (options("Open"), "accepts unknown keys"),
    (options("Undescribed"), "'a' has no description"),
    (options("GOOD"), "isn't a pydantic model"),
    (lambda: plugins.check_descriptors([("tools", DESCRIPTOR)] * 2), "two tools are called 'x'"),
    (lambda: plugins.check_descriptors([("tools", replace(DESCRIPTOR, summary=""))]), "needs a summary of one line"),
    (lambda: plugins.entry_point("no-such-plugin"), r"0 entry points .* are called 'no-such-plugin'.*builtin"),
]
ALL = [*PARSERS, *REWARDS, *TRAINING, *DATA_SETS, *CHAT_FORMATS, *ENGINES, *HARNESSES, *PLUGINS]


@pytest.mark.parametrize(("check", "message"), ALL, ids=[message for _, message in ALL])
def test_a_broken_component_is_found(check: Callable[[], None], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if any(check is one for one, _ in TRAINING[3:]):
        pytest.importorskip("torch", reason="a policy loss needs torch")
    monkeypatch.setitem(sys.modules, "toolrl_test_options", sys.modules[__name__])
    monkeypatch.setattr(engines, "_PATIENCE", 0.5)
    with pytest.raises(AssertionError, match=message):
        check()


def test_sound_components() -> None:
    chat_formats.check_laws(FakeChatFormat())
    chat_formats.check_text(FakeChatFormat())
    scored_together(lambda episodes: [Score(1.0)] * len(episodes))()
    harnesses.check_plays(SoundHarness(), ["4", "5"])
    harnesses.check_cancel(SoundHarness())
    assert harnesses.play(SoundHarness(), ["4"]).answer == "4"
    plugins.check_descriptors([("tools", DESCRIPTOR), ("rewards", DESCRIPTOR)])


def test_a_plugin_module_that_imports_something_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toolrl_test_heavy.py").write_text("import pydantic\n")
    (tmp_path / "toolrl_test_light.py").write_text("import toolrl\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plugins.check_discovery_is_light("toolrl_test_light")
    with pytest.raises(AssertionError, match="importing toolrl_test_heavy imports pydantic"):
        plugins.check_discovery_is_light("toolrl_test_heavy")
