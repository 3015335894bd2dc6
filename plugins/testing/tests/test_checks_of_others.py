"""Each contract of parsers, rewards, data sets, chat formats, engines, observers, commands and of the plugin itself
fails on a component that breaks it."""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from email.message import Message as MailMessage
from pathlib import Path
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

# Parsers.


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


def variant(sound: type, **methods: Any) -> Any:
    """A class with some methods of its own."""
    return type("Broken", (sound,), methods)


def changed(change: Callable[[ParsedTurn], ParsedTurn]) -> Any:
    """A parser whose turns are changed."""
    return variant(SoundParser, parse=lambda self, text, **_: change(SoundParser.parse(self, text)))


def refusing(self: SoundParser, text: str, **_: Any) -> ParsedTurn:
    if "{" in text:
        raise ValueError("unexpected {")
    return SoundParser.parse(self, text)


def slow(self: SoundParser, text: str, **_: Any) -> ParsedTurn:
    for start in range(0, len(text), 8):
        text[start:].count("\ufffe")
    return SoundParser.parse(self, text)


NUMBERS = itertools.count()
TEXTS = ("first !calculator then !search.",)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (variant(SoundParser, parse=refusing), "parse\\(\\) raised ValueError: unexpected {"),
        (
            changed(lambda turn: replace(turn, items=tuple(replace(it, span=(0, 1)) for it in turn.items))),
            "raw is '!calculator', the span holds",
        ),
        (changed(lambda turn: replace(turn, items=turn.items[::-1])), "begins before the last one's end"),
        (changed(lambda turn: replace(turn, content=str(next(NUMBERS)))), "two different turns"),
        (changed(lambda turn: replace(turn, status="final")), "status is 'final' with 2 items"),
        (variant(SoundParser, stops=lambda self, text: ("",)), "expected a text that isn't empty"),
        (
            variant(SoundParser, render_results=lambda self, records: "ok" if records else ""),
            "leaves out 'result 0'",
        ),
    ],
)
def test_a_broken_parser_is_found(broken: type[SoundParser], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        parsers.check_total(broken(), TEXTS)


def test_a_parser_that_takes_quadratic_time_is_found() -> None:
    with pytest.raises(AssertionError, match="more than 32 times as long"):
        parsers.check_linear(variant(SoundParser, parse=slow)(), TEXTS)


def test_a_parser_that_finds_no_call() -> None:
    with pytest.raises(AssertionError, match="no call was found"):
        parsers.check_calls_found(SoundParser(), ["nothing here"])


# Rewards.


class SoundReward:
    def make(self, episode: Episode) -> Score:
        return Score(1.0, {len(episode.turns) - 1: 0.5} if episode.turns else {}, {"correct": 1.0})

    async def score(self, episode: Episode) -> Any:
        return self.make(episode)


def reward_of(score: Callable[[Episode], Any]) -> SoundReward:
    made = SoundReward()
    made.make = score  # type: ignore[method-assign]
    return made


def _change(episode: Episode) -> Score:
    episode.metrics["seen"] = 1.0  # type: ignore[index]
    return Score(1.0)


class BlockingReward:
    """Starts, stops, and is no coroutine function."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def start(self) -> None:
        self.log.append("start")

    async def stop(self) -> None:
        self.log.append("stop")

    def score(self, episode: Episode) -> Score:
        assert self.log == ["start"]
        return Score(1.0)


def test_a_reward_that_blocks_is_started_and_stopped() -> None:
    reward = BlockingReward()
    asyncio.run(rewards.check_scores(reward, rewards.sample_episodes()))
    assert reward.log == ["start", "stop"]


class GroupReward:
    def __init__(self, made: Callable[[Sequence[Episode]], Any]) -> None:
        self._made = made

    async def score_group(self, episodes: Sequence[Episode]) -> Any:
        return self._made(episodes)


def test_a_reward_of_groups() -> None:
    reward = GroupReward(lambda episodes: [Score(1.0)] * len(episodes))
    asyncio.run(rewards.check_scores(reward, rewards.sample_episodes()))


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda episodes: [Score(1.0)], "expected one for each"),
        (lambda episodes: [Score(float("nan"))] * len(episodes), "nan"),
        (lambda episodes: [ValueError("unread")] * len(episodes), "unread"),
        (lambda episodes: [_change(episode) for episode in episodes], "changed an episode"),
    ],
)
def test_a_broken_reward_of_groups_is_found(made: Callable[[Sequence[Episode]], Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        asyncio.run(rewards.check_scores(GroupReward(made), rewards.sample_episodes()))


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda e: 1.0, "gave float 1.0, expected a Score"),
        (lambda e: Score(float("nan")), "the score is nan"),
        (lambda e: Score(len(e.turns[0].text)), r"raised IndexError.*with 0 turns"),
        (lambda e: Score(1.0, {0: 1.0}), "credit for turn 0, which isn't there"),
        (lambda e: Score(1.0, metrics={"correct": 2.0}), "`correct` is 2.0"),
        (lambda e: Score(1.0, metrics={"x": float("inf")}), "metric 'x' is inf"),
        (_change, "changed the episode"),
    ],
)
def test_a_broken_reward_is_found(score: Callable[[Episode], Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        asyncio.run(rewards.check_scores(reward_of(score), rewards.sample_episodes()))


# Advantage estimators and policy losses.


class Centred:
    """Rewards less their group's mean, by turn; `spoil` breaks what it says."""

    def __init__(self, spoil: Callable[[list[list[Any]]], Any] = lambda said: said) -> None:
        self.spoil = spoil

    def advantages(self, groups: Sequence[Group]) -> Any:
        said = []
        for group in groups:
            mean = sum(e.reward for e in group.scored) / max(len(group.scored), 1)
            said.append([{turn.index: e.reward - mean for turn in e.turns} for e in group.episodes])
        return self.spoil(said) if groups else said


def _first(said: list[list[Any]], value: Any) -> list[list[Any]]:
    said[0][0] = value
    return said


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda said: said[1:], "5 entries for 6 groups"),
        (lambda said: [row[1:] for row in said], "3 advantages of 4 episodes for the group 'spread'"),
        (lambda said: _first(said, float("nan")), "an advantage is nan"),
        (lambda said: _first(said, {0: 1.0}), r"no advantage for turn \[1\]"),
        (lambda said: _first(said, None), "an advantage is None"),
    ],
)
def test_a_broken_advantage_estimator_is_found(spoil: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        training.check_advantages(Centred(spoil), training.sample_groups())


class Reinforce:
    """−A · log π; `spoil` breaks it."""

    def __init__(self, spoil: Callable[[LossTerms], Any] | None = None) -> None:
        self.spoil = spoil

    def token_losses(self, terms: LossTerms) -> Any:
        return self.spoil(terms) if self.spoil else -terms.advantages_BT * terms.logprobs_BT


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda terms: 1.0, "gave float"),
        (lambda terms: terms.logprobs_BT.sum(), "expected"),
        (lambda terms: terms.logprobs_BT / 0.0, "is not finite"),
        (lambda terms: (terms.logprobs_BT - terms.logprobs_BT.detach()).abs().sqrt(), "gradient is not finite"),
        (lambda terms: 0.0 * terms.logprobs_BT, "all gradients are 0"),
        (lambda terms: terms.logprobs_BT * terms.advantages_BT.mul_(2.0), "changed its terms"),
    ],
)
def test_a_broken_policy_loss_is_found(spoil: Any, message: str) -> None:
    pytest.importorskip("torch", reason="a policy loss needs torch")
    with pytest.raises(AssertionError, match=message):
        training.check_policy_loss(Reinforce(spoil))


# Data sets.


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


class Fresh(Rows):
    reads = 0

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        row = super().__getitem__(index)
        return replace(row, extra={"reads": self.reads})


GOOD = [make_task(id="a"), make_task(id="b")]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (Rows([]), "is empty"),
        (Rows([{"id": "a"}]), "row 0 is dict"),
        (Rows([Task("a", ())]), "has no messages"),
        (Rows([GOOD[0], GOOD[0]]), "another row's"),
        (Endless(GOOD), "no IndexError"),
        (Fresh(GOOD), "another one when it is read again"),
    ],
)
def test_a_broken_data_set_is_found(source: Rows, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        others.check_rows(source)


def test_a_data_set_that_does_not_pickle() -> None:
    with pytest.raises(AssertionError, match="doesn't pickle"):
        others.check_pickles(Rows(GOOD, extra=lambda: None))


# Chat formats.


def format_with(**methods: Any) -> Any:
    return variant(FakeChatFormat, **methods)


def decoded_with(change: Callable[[Decoded], Decoded]) -> Any:
    return format_with(decode=lambda self, ids: change(FakeChatFormat.decode(self, ids)))


def keeps_end_mark(self: FakeChatFormat, ids: Sequence[int]) -> Decoded:
    return FakeChatFormat.decode(self, [*ids, END_ID] if ids and ids[-1] == END_ID else ids)


def reads_specials(self: FakeChatFormat, text: str) -> tuple[int, ...]:
    head, mark, tail = text.partition("<|end|>")
    return (*map(ord, head), *((END_ID, *map(ord, tail)) if mark else ()))


BRIDGE, OPEN = FakeChatFormat.bridge, FakeChatFormat.open
IgnoresTools = format_with(open=lambda self, messages, tools: OPEN(self, messages, ()))


def test_a_sound_chat_format() -> None:
    chat_formats.check_laws(FakeChatFormat())
    chat_formats.check_text(FakeChatFormat())
    chat_formats.check_laws(IgnoresTools(), tools=False)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (format_with(bridge=lambda self, ids, *more: BRIDGE(self, (END_ID,), *more)), "must begin with the end mark"),
        (
            format_with(bridge=lambda self, *given: Rendered(BRIDGE(self, *given).ids[:-1])),
            "differs from the conversation opened as a whole; from token",
        ),
        (IgnoresTools, "leaves out the tool 'look_up_word'"),
        (format_with(end_ids=()), "end_ids is empty"),
    ],
)
def test_a_chat_format_that_breaks_a_law_is_found(broken: type[FakeChatFormat], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        chat_formats.check_laws(broken())


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (format_with(decode=keeps_end_mark), "the closing end mark is left out"),
        (decoded_with(lambda it: replace(it, offsets=it.offsets[:-1])), "offsets"),
        (decoded_with(lambda it: replace(it, text=it.text.strip())), r"decode\(inline\(' two  spaces '\)\)"),
        (format_with(inline=reads_specials), "could end the turn"),
        (format_with(token_count=lambda self, text: len(text) + 1), "token_count"),
    ],
)
def test_a_chat_format_that_mangles_text_is_found(broken: type[FakeChatFormat], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        chat_formats.check_text(broken())


# Engines.


class Uniform:
    """Counts up from the seed; sound."""

    places = 4

    def __init__(self) -> None:
        self.version = 0
        self.busy = asyncio.Semaphore(self.places)

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

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


def made_with(change: Callable[[Generation], Generation]) -> Any:
    return variant(Uniform, made=lambda self, ids, stopped: change(Uniform.made(self, ids, stopped)))


def first_with(first: Callable[[str], int]) -> Any:
    return variant(Uniform, first=lambda self, sampling, session: first(session))


def drops_stop_token(self: Uniform, ids: list[int], stopped: str | int | None) -> Generation:
    return Uniform.made(self, ids[:-1] if stopped is not None else ids, stopped)


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


def run_engine(engine: type[Uniform], check: Callable[[Any], Any]) -> None:
    async def main() -> None:
        await check(engine())

    asyncio.run(main())


ENGINE_CHECKS: dict[str, Callable[[Any], Any]] = {
    "sampling": lambda engine: engines.check_sampling(engine, PROMPT),
    "stops": lambda engine: engines.check_stops(engine, PROMPT, FakeChatFormat()),
    "sessions": lambda engine: engines.check_sessions(engine, PROMPT),
    "cancel": lambda engine: engines.check_cancel(engine, PROMPT),
    "versions": lambda engine: engines.check_versions(engine, PROMPT, FakeWeights()),
}


@pytest.mark.parametrize(
    ("broken", "check", "message"),
    [
        (made_with(lambda it: replace(it, logprobs=(-1.0,))), "sampling", "12 ids and 1 log-probabilities"),
        (made_with(lambda it: replace(it, logprobs=(0.5,) * len(it.ids))), "sampling", "at most 0"),
        (first_with(lambda session: 97 + len(session)), "sampling", "seed 11 gave"),
        (variant(Uniform, made=drops_stop_token), "stops", "stop id"),
        (variant(Uniform, generate=ignores_stops), "stops", "stop '"),
        (first_with(lambda session: 98 if session == "another" else 97), "sessions", "in the session"),
        (variant(Uniform, update_weights=ignores_versions), "versions", "version 7"),
    ],
)
def test_a_broken_engine_is_found(broken: type[Uniform], check: str, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        run_engine(broken, ENGINE_CHECKS[check])


def test_an_engine_that_leaks_places_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_PATIENCE", 0.5)
    with pytest.raises(AssertionError, match="a generation is stuck"):
        run_engine(variant(Uniform, generate=leaks_places), ENGINE_CHECKS["cancel"])


# Harnesses.


class SoundHarness:
    left: ClassVar[set[Any]] = set()

    async def play(self, task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        return Outcome((await model.ask(task.messages)).content)


async def _asks_nothing(self: SoundHarness, *given: Any) -> Outcome:
    return Outcome("4")


async def _leaves_a_task(self: SoundHarness, task: Task, model: Model, episode: EpisodeContext) -> Outcome:
    self.left.add(asyncio.ensure_future(asyncio.sleep(60)))
    return await SoundHarness.play(self, task, model, episode)


def test_a_sound_harness() -> None:
    harnesses.check_plays(SoundHarness(), ["4", "5"])
    harnesses.check_cancel(SoundHarness())
    assert harnesses.play(SoundHarness(), ["4"]).answer == "4"


@pytest.mark.parametrize(
    ("play", "message"),
    [(_asks_nothing, "play\\(\\) failed: .*without asking the model"), (_leaves_a_task, "it left 2 tasks running")],
)
def test_a_broken_harness_is_found(play: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        harnesses.check_plays(variant(SoundHarness, play=play)(), ["4"])


def test_a_harness_that_leaves_a_task_when_it_is_cancelled_is_found() -> None:
    with pytest.raises(AssertionError, match="it left 1 tasks running"):
        harnesses.check_cancel(variant(SoundHarness, play=_leaves_a_task)())


# Observers and commands.


class SoundObserver:
    def toolrl_step_end(self, run: Any, report: Any) -> None: ...

    def toolrl_run_end(self, error: Any) -> None: ...


class AsyncObserver:
    async def toolrl_step_end(self, run: Any, report: Any) -> None: ...


class Misspelled:
    def toolrl_step_ended(self, run: Any, report: Any) -> None: ...


def test_observers() -> None:
    others.check_observer(SoundObserver())
    for broken, message in ((AsyncObserver, "async"), (Misspelled, "no event")):
        with pytest.raises(AssertionError, match=message):
            others.check_observer(broken())


class NoRun:
    def configure(self, parser: argparse.ArgumentParser) -> None: ...


class BadArguments(NoRun):
    def configure(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("x", help="100%")

    def run(self, args: argparse.Namespace) -> int:
        return 0


def test_commands() -> None:
    for broken, message in ((NoRun, r"no run\(args\)"), (BadArguments, r"configure\(\) raised")):
        with pytest.raises(AssertionError, match=message):
            others.check_command(broken())  # type: ignore[arg-type]


# The plugin itself.


class Open(BaseModel):
    a: int = Field(1, description="a")


class Undescribed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int = 1


@pytest.mark.parametrize(
    ("options", "message"),
    [("Open", "accepts unknown keys"), ("Undescribed", "'a' has no description"), ("GOOD", "isn't a pydantic model")],
)
def test_options_models(options: str, message: str) -> None:
    sys.modules["toolrl_test_options"] = sys.modules[__name__]
    try:
        component: Component[Any] = Component("x", "toolrl_test_options:x", options=f"toolrl_test_options:{options}")
        with pytest.raises(AssertionError, match=message):
            plugins.check_options(component)
    finally:
        del sys.modules["toolrl_test_options"]


def test_descriptors() -> None:
    good: Component[Any] = Component("x", "m:x", summary="Does x.")
    plugins.check_descriptors([("tools", good), ("rewards", good)])
    with pytest.raises(AssertionError, match="two tools are called 'x'"):
        plugins.check_descriptors([("tools", good), ("tools", good)])
    with pytest.raises(AssertionError, match="needs a summary of one line"):
        plugins.check_descriptors([("tools", replace(good, summary=""))])


def test_a_plugin_module_that_imports_something_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toolrl_test_heavy.py").write_text("import pydantic\n")
    (tmp_path / "toolrl_test_light.py").write_text("import toolrl\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    plugins.check_discovery_is_light("toolrl_test_light")
    with pytest.raises(AssertionError, match="importing toolrl_test_heavy imports pydantic"):
        plugins.check_discovery_is_light("toolrl_test_heavy")
    with pytest.raises(AssertionError, match="can't be imported"):
        plugins.check_discovery_is_light("toolrl_test_missing")


class _Distribution(importlib.metadata.Distribution):
    def __init__(self, readme: str, needs: str) -> None:
        mail = MailMessage()
        mail["Metadata-Version"], mail["Name"], mail["Version"] = "2.1", "toolrl-plugin-x", "1"
        if needs:
            mail["Requires-Dist"] = needs
        mail.set_payload(readme)
        self._text = mail.as_string()

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(path)


def test_what_the_distribution_carries() -> None:
    plugins.check_readme(_Distribution("pip install toolrl-plugin-x", "toolrl>=0.1,<0.2"))
    for readme, needs, message in (
        ("", "toolrl", "has no README"),
        ("hello", "toolrl", "how to install it"),
        ("pip install x", "toolrl-plugin-y", "which toolrl it needs"),
        ("pip install x", "", "which toolrl it needs"),
    ):
        with pytest.raises(AssertionError, match=message):
            plugins.check_readme(_Distribution(readme, needs))
    with pytest.raises(AssertionError, match="no distribution"):
        plugins.check_readme(None)


def test_an_entry_point_that_is_not_there() -> None:
    with pytest.raises(AssertionError, match=r"0 entry points .* are called 'no-such-plugin'.*builtin"):
        plugins.entry_point("no-such-plugin")
    assert plugins.entry_point("builtin").value == "toolrl.builtin.plugin"
