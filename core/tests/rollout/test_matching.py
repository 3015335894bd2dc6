"""Whatever clients do to a history, each sample stands once behind what the model read; what is only continued is one
trajectory, although clients send it back in other words."""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from toolrl.errors import EngineError
from toolrl.parsing.flags import EndFlags
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.model import EpisodeModel
from toolrl.rollouts.trajectory import TrajectoryRun
from toolrl.tools.toolbox import ToolBox
from toolrl.types import (
    CallError,
    Generation,
    Message,
    ParsedTurn,
    Rendered,
    Sampling,
    ToolCall,
    ToolSpec,
    Turn,
)
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine

CALL = re.compile("<tool_call>\n(.*?)\n</tool_call>")
CALL_OF_ADD = '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
SPECS = [ToolSpec("add", "Adds."), ToolSpec("look", "Looks.")]


class Stripping(FakeChatFormat):
    """Shows the thinking of no earlier turn, as Qwen's templates do behind another question."""

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        return super().open([replace(message, reasoning=None) for message in messages], tools)


class Thinking(FakeParser):
    """Reads `<think>…</think>` and calls in hermes form."""

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        thought, _, said = text.rpartition("</think>")
        found = [(json.loads(it[1]), it) for it in CALL.finditer(said)]
        items = tuple(ToolCall(it["name"], it["arguments"], span=at.span(), raw=at[0]) for it, at in found)
        reasoning = thought.removeprefix("<think>") or None
        said, bad, _ = CALL.sub("", said).partition("<bad>")
        errors = (CallError("invalid_json", "no JSON", raw="<bad>"),) if bad else ()
        return ParsedTurn((*items, *errors), said, reasoning, status="calls" if items else "final")


class Engine(ScriptedEngine):
    """Says something by chance of the question's seed; can be cancelled on the way, and fails at `!`."""

    async def generate(self, prompt: Sequence[int], *given: Any, **more: Any) -> Any:
        await asyncio.sleep(0)
        if ord("!") in prompt:
            raise EngineError("it broke")
        return await super().generate(prompt, *given, **more)

    def _next_text(self, prompt: Sequence[int], session: str) -> str:
        return ""

    def _generation(self, text: str, sampling: Sampling) -> Generation:
        chance = random.Random(sampling.seed)
        text = chance.choice(["", "<think>hm</think>"]) + f" {chance.randrange(3)} "
        calls = [
            {"name": name, "arguments": {"x": 1.0}} for name in chance.sample(["add", "look"], chance.randrange(3))
        ]
        text += "".join(f"<tool_call>\n{json.dumps(call)}\n</tool_call>" for call in calls)
        return super()._generation(text, sampling)


def model_of(engine: ScriptedEngine, limit: int = 100_000) -> EpisodeModel:
    chat = Stripping()
    environment = Environment("default", Thinking(), chat, ToolBox([]), end_flags=EndFlags(()))
    numbers, sessions = (count(), count(1)), count()

    def begin(role: str) -> TrajectoryRun:
        return TrajectoryRun(environment, engine, Limits(300, limit), numbers, f"s/{next(sessions)}", role)

    return EpisodeModel(chat, begin, seed=1)


@dataclass
class Talk:
    """A conversation as a client keeps it."""

    role: str
    messages: list[Message]
    untouched: bool = True
    """Nothing was done to it but that it was continued."""
    turns: list[Turn] = field(default_factory=list)

    def copy(self) -> Talk:
        return Talk(self.role, self.messages[:], False, self.turns[:])


def sent_back(message: Message, form: str, number: int) -> Message:
    """In which form a client may send an assistant message back."""
    calls = message.tool_calls
    if form == "plain":
        return replace(message, reasoning=None)
    if form == "own ids":
        calls = tuple(replace(call, id=f"mine-{number}-{place}") for place, call in enumerate(calls))
    elif form == "no ids":
        calls = tuple(replace(call, id="", arguments={"x": 1}) for call in calls)
    return replace(message, tool_calls=calls, content=f"{message.content.strip()}\n")


def plain(prompt: Sequence[int]) -> str:
    """What a prompt says, without what clients leave out or write in another way."""
    text = re.sub("<think>.*?</think>", "", Stripping().decode(prompt).text)
    return re.sub(r"\s", "", text).replace("1.0", "1")


FORMS = st.sampled_from(["same", "plain", "own ids", "no ids"])
WHICH = st.integers(0, 20)


class Clients(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.engine = Engine([])
        self.model = model_of(self.engine)
        self.talks: list[Talk] = []
        self.numbers = count()

    def teardown(self) -> None:
        self.loop.close()

    def talk(self, which: int) -> Talk:
        if not self.talks:
            self.open("agent")
        return self.talks[which % len(self.talks)]

    async def ask(self, talk: Talk, form: str, **more: Any) -> None:
        turn = await self.model.ask(talk.messages, SPECS, role=talk.role, **more)
        assert plain(self.prompt_of(turn)) == plain(Stripping().open(talk.messages, SPECS).ids)
        said = sent_back(turn.message, form, number := next(self.numbers))
        answers = [Message("tool", f"{number}", tool_call_id=call.id or None) for call in said.tool_calls]
        talk.messages += [said, *(answers or [Message("user", "go on")])]
        talk.turns.append(turn)

    def prompt_of(self, turn: Turn) -> Sequence[int]:
        (run,) = [it for it in self.model.results() if turn.index in [own.index for own in it.turns]]
        return run.ids[: turn.segments[0].tokens[0]]

    @rule(role=st.sampled_from(["agent", "other"]))
    def open(self, role: str) -> None:
        self.talks.append(Talk(role, [Message("user", f"question {len(self.talks)}")]))

    @rule(which=WHICH, forms=st.lists(FORMS, min_size=1, max_size=4))
    def go_on(self, which: int, forms: list[str]) -> None:
        for form in forms:
            self.loop.run_until_complete(self.ask(self.talk(which), form))

    @rule(which=WHICH, form=FORMS)
    def go_on_as_the_template_renders(self, which: int, form: str) -> None:
        self.talk(which).untouched = False
        self.loop.run_until_complete(self.ask(self.talk(which), form, exact=False))

    @rule(which=WHICH, place=st.integers(0, 9), text=st.sampled_from(["edited", ""]))
    def edit(self, which: int, place: int, text: str) -> None:
        talk = self.talk(which)
        talk.untouched = False
        place %= len(talk.messages)
        talk.messages[place] = replace(talk.messages[place], content=text, reasoning="forged" if text else None)

    @rule(which=WHICH, start=st.integers(0, 3), length=st.integers(1, 4))
    def cut(self, which: int, start: int, length: int) -> None:
        talk = self.talk(which)
        talk.untouched = False
        del talk.messages[start : start + length]
        talk.messages = talk.messages or [Message("user", "all was dropped")]

    @rule(which=WHICH)
    def fork(self, which: int) -> None:
        self.talk(which).untouched = False
        self.talks.append(self.talk(which).copy())

    @rule(which=WHICH, forms=st.lists(FORMS, min_size=2, max_size=3), exact=st.booleans())
    def ask_in_parallel(self, which: int, forms: list[str], exact: bool) -> None:
        talk = self.talk(which)
        talk.untouched = False
        copies = [talk.copy() for _ in forms]

        async def all_of_them() -> None:
            await asyncio.gather(*(self.ask(copy, form, exact=exact) for copy, form in zip(copies, forms, strict=True)))

        self.loop.run_until_complete(all_of_them())
        self.talks += copies

    @rule(which=WHICH, ticks=st.integers(0, 3))
    def give_up(self, which: int, ticks: int) -> None:
        """A cancelled question leaves nothing: what goes on afterwards is one trajectory."""
        talk, generated = self.talk(which), self.engine.calls

        async def cancelled() -> None:
            job = asyncio.ensure_future(self.model.ask(talk.messages, SPECS, role=talk.role))
            for _ in range(ticks):
                await asyncio.sleep(0)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job

        self.loop.run_until_complete(cancelled())
        del self.engine.generated[generated:]

    @rule(which=WHICH)
    def fail(self, which: int) -> None:
        talk = self.talk(which)
        broken = [*talk.messages[:-1], replace(talk.messages[-1], content="!")]
        with pytest.raises(EngineError):
            self.loop.run_until_complete(self.model.ask(broken, SPECS, role=talk.role))

    @invariant()
    def each_sample_is_recorded_once_behind_what_the_model_read(self) -> None:
        recorded: Counter[Any] = Counter()
        found = self.model.results()
        for trajectory in found:
            own = [0] * len(trajectory.ids)
            for turn in trajectory.turns:
                ((start, end),) = (segment.tokens for segment in turn.segments)
                recorded[trajectory.ids[:start], trajectory.ids[start:end]] += 1
                own[start:end] = [1] * (end - start)
            assert list(trajectory.loss_mask) == own
        assert recorded == Counter((it.prompt, it.generation.ids) for it in self.engine.generated)

    @invariant()
    def what_is_only_continued_is_one_trajectory(self) -> None:
        found = [[turn.index for turn in trajectory.turns] for trajectory in self.model.results()]
        for talk in self.talks:
            if talk.untouched and talk.turns:
                assert [turn.index for turn in talk.turns] in found

    @invariant()
    def calls_have_the_answers_that_were_sent(self) -> None:
        answered = {turn.index: [record.result.text for record in turn.calls] for turn in self.model.turns()}
        for talk in self.talks:
            if talk.untouched:
                sent = [message.content for message in talk.messages if message.role == "tool"]
                found = [text for turn in talk.turns[:-1] for text in answered[turn.index]]
                assert found == sent[: len(found)]
                assert len(found) == sum(len(turn.items) for turn in talk.turns[:-1])


Clients.TestCase.settings = settings(deadline=None, stateful_step_count=30, max_examples=60)
TestClients = Clients.TestCase


def told(text: str) -> EpisodeModel:
    """A model that always says this."""
    return model_of(ScriptedEngine(lambda prompt: text))


async def ask(model: EpisodeModel, *messages: Message, **more: Any) -> Turn:
    return await model.ask([Message("user", "a"), *messages], **more)


def shape(model: EpisodeModel) -> list[list[int]]:
    return [[turn.index for turn in trajectory.turns] for trajectory in model.results()]


@pytest.mark.parametrize(
    ("reasoning", "exact", "trajectories"),
    [("hm", True, 1), (" hm\n", True, 1), (None, True, 1), ("", True, 1), ("no", True, 2), ("hm", False, 2)],
)
def test_thinking_that_is_sent_back(reasoning: str | None, exact: bool, trajectories: int) -> None:
    """What was left out was only left out; another thought is another history; and the template shows none of it."""

    async def main() -> None:
        model = told("<think>hm</think>ok")
        said = (await ask(model)).message
        await ask(model, replace(said, reasoning=reasoning), Message("user", "b"), exact=exact)
        assert len(shape(model)) == trajectories
        last = model.results()[-1]
        assert ("hm" in Stripping().decode(last.ids[: last.turns[-1].segments[0].tokens[0]]).text) == (
            trajectories == 1
        )
        assert [message.reasoning for message in last.messages if message.role == "assistant"] == (
            ["hm", "hm"] if trajectories == 1 else [reasoning, "hm"]
        )

    asyncio.run(main())


@pytest.mark.parametrize("calls", [True, False])
def test_each_of_two_equal_answers_is_continued(calls: bool) -> None:
    """By the ids of its calls, or the newest that nothing goes on from yet."""

    async def main() -> None:
        model = told(CALL_OF_ADD if calls else "ok")
        first, second = (await ask(model)).message, (await ask(model)).message
        more = Message("tool", "1") if calls else Message("user", "b")
        await ask(model, first, more)
        await ask(model, second, more)
        assert shape(model) == ([[0, 2], [1, 3]] if calls else [[0, 3], [1, 2]])

    asyncio.run(main())


@pytest.mark.parametrize(
    ("text", "sent", "same"),
    [
        ("first END", "first END", True),
        ("first END", "first ", True),
        ("first END", "", False),
        (f"first{CALL_OF_ADD}", "", False),
        ("first<bad>", "first", True),
        ("first<bad>", "first\n<bad>", True),
    ],
)
def test_forms_in_which_a_client_sends_a_turn_back(text: str, sent: str, same: bool) -> None:
    """It isn't given a stop string, and a call that couldn't be read is text to it. What it cut itself is a change."""

    async def main() -> None:
        model = told(text)
        said = (await ask(model, stop=["END", "</tool_call>"])).message
        await ask(model, replace(said, content=sent), Message("user", "b"))
        assert shape(model) == ([[0, 1]] if same else [[0], [1]])

    asyncio.run(main())


def test_parallel_questions_as_the_template_renders() -> None:
    async def main() -> None:
        model = told("ok")
        said = (await ask(model)).message
        await asyncio.gather(*(ask(model, said, Message("user", text), exact=False) for text in "bc"))
        assert shape(model) == [[0, 1], [2]]

    asyncio.run(main())


def test_answers_are_read_from_an_edited_history() -> None:
    async def main() -> None:
        model = told(CALL_OF_ADD)
        turn = await ask(model)
        answer = Message("tool", "4", tool_call_id=turn.items[0].id)
        await ask(model, Message("user", "a summary"), turn.message, answer)
        assert [record.result.text for record in model.turns()[0].calls] == ["4"]

    asyncio.run(main())
