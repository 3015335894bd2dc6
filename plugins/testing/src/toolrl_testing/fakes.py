"""Small components that behave exactly, without a model: for tests of plugins and of toolrl itself.

`FakeChatFormat` makes one token of each character and of each mark, so that a test can count by eye. `ScriptedEngine`
samples a script, `FakeParser` finds calls by a function of the text. `RecordingToolset` records its calls. The `make_…`
functions fill in what a test doesn't care about.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext, ChatFormat, EpisodeContext, ToolParser, ToolSession, WeightSource
from toolrl.types import (
    CallRecord,
    Episode,
    Generation,
    Message,
    ParsedTurn,
    RewardEntry,
    Sampling,
    Score,
    Segment,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Trajectory,
    Turn,
)
from toolrl_testing.fake_chat import END_ID, CharTokenizer, FakeChatFormat

__all__ = [
    "END_ID", "CharTokenizer", "FakeChatFormat", "FakeParser", "FakeWeights", "FixedReward", "Generated",
    "RecordingToolset", "ScriptedEngine", "make_build_context", "make_episode", "make_episode_context", "make_task",
]  # fmt: skip


@dataclass(frozen=True)
class Generated:
    """One `generate` that a ScriptedEngine answered."""

    session: str
    prompt: tuple[int, ...]
    sampling: Sampling
    generation: Generation


class ScriptedEngine:
    """An engine that answers from a script.

    `script` is a list of texts, which each session gets from the first on, or a function from the prompt's text to a
    text. A text is cut at a stop string (the token that completes it is kept whole) or at max_new_tokens; else it ends
    with the format's end mark. Running out of texts raises EngineError.
    """

    def __init__(
        self,
        script: Sequence[str] | Callable[[str], str],
        chat: ChatFormat | None = None,
        *,
        latency: float = 0.0,
        logprob: float = -1.0,
    ) -> None:
        self._script = script
        self._chat: ChatFormat = chat if chat is not None else FakeChatFormat()
        self._latency = latency
        self._logprob = logprob
        self._answered: Counter[str] = Counter()
        self._running = 0
        self.generated: list[Generated] = []
        """In order of completion."""
        self.closed: list[str] = []
        """Sessions, in the order in which they were closed."""
        self.most_at_once = 0
        self.version = 0
        self.running = False

    @property
    def calls(self) -> int:
        """The number of generations that it answered."""
        return len(self.generated)

    async def start(self) -> None:
        self.running = True

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            await asyncio.sleep(self._latency)
            generation = self._generation(self._next_text(prompt, session), sampling)
        finally:
            self._running -= 1
        self.generated.append(Generated(session, tuple(prompt), sampling, generation))
        return generation

    async def close(self, session: str) -> None:
        self.closed.append(session)
        self._answered.pop(session, None)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        self.version = version

    async def stop(self) -> None:
        self.running = False

    def _next_text(self, prompt: Sequence[int], session: str) -> str:
        if callable(self._script):
            return self._script(self._chat.decode(prompt).text)
        position = self._answered[session]
        if position >= len(self._script):
            raise EngineError(
                f"the script has {len(self._script)} texts, and session {session!r} asks for one more",
                hint="Give ScriptedEngine a text for each generation of an episode.",
            )
        self._answered[session] += 1
        return self._script[position]

    def _generation(self, text: str, sampling: Sampling) -> Generation:
        ids = tuple(self._chat.inline(text))
        stopped_by: str | int | None = None
        ends = [(text.find(stop) + len(stop), stop) for stop in sampling.stop if stop in text]
        if ends:
            end, stopped_by = min(ends, key=lambda pair: pair[0])
            offsets = self._chat.decode(ids).offsets
            ids = ids[: next(i for i, offset in enumerate(offsets) if offset >= end)]
        elif sampling.stop_token_ids:
            stopped_by = sampling.stop_token_ids[0]
            ids = (*ids, stopped_by)
        if len(ids) > sampling.max_new_tokens:
            ids, stopped_by = ids[: sampling.max_new_tokens], None
        return Generation(
            ids=ids,
            logprobs=(self._logprob,) * len(ids),
            finish="stop" if stopped_by is not None else "length",
            stopped_by=stopped_by,
            versions=(self.version,) * len(ids),
        )


@dataclass
class RecordingToolset:
    """A toolset that records its calls, in order, in `events`."""

    answer: Callable[[ToolCall], ToolResult | str] = lambda call: "ok"
    """Answers a call; may raise."""
    tools: Sequence[ToolSpec] = (ToolSpec("echo", "Says ok."),)
    delay: float = 0.0
    """Seconds before each answer."""
    reward: float | None = None
    opening: Sequence[Message] = ()
    fails: frozenset[str] = frozenset()
    """Which of start, open, opening, reward, close and stop raise RuntimeError."""
    events: list[tuple[str, str]] = field(default_factory=list)
    """(event, subject): `open`, `close`, `reward`, `opening` with the episode's id, `call` with the tool's name,
    `start` and `stop` with nothing."""

    async def start(self) -> None:
        self._note("start")

    async def stop(self) -> None:
        self._note("stop")

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[ToolSession]:
        self._note("open", episode.episode_id)
        try:
            yield _RecordingSession(self, episode.episode_id)
        finally:
            self._note("close", episode.episode_id)

    def count(self, what: str) -> int:
        """How often an event was recorded."""
        return sum(event == what for event, _ in self.events)

    def _note(self, event: str, subject: str = "") -> None:
        self.events.append((event, subject))
        if event in self.fails:
            raise RuntimeError(f"{event} fails, as the test asks")


class _RecordingSession:
    def __init__(self, toolset: RecordingToolset, episode_id: str) -> None:
        self._toolset = toolset
        self._episode_id = episode_id

    def specs(self) -> Sequence[ToolSpec]:
        return self._toolset.tools

    async def opening(self) -> Sequence[Message]:
        self._toolset._note("opening", self._episode_id)
        return self._toolset.opening

    async def respond(self, turn: Turn) -> None:
        return None

    async def call(self, call: ToolCall) -> ToolResult:
        self._toolset._note("call", call.name)
        await asyncio.sleep(self._toolset.delay)
        result = self._toolset.answer(call)
        return ToolResult(result) if isinstance(result, str) else result

    async def reward(self) -> float | None:
        self._toolset._note("reward", self._episode_id)
        return self._toolset.reward


class FakeParser(ToolParser):
    """A parser for scripted turns: `calls(text)` gives the names of the tools that a turn calls, by default none."""

    def __init__(self, calls: Callable[[str], Sequence[str]] = lambda text: ()) -> None:
        self._calls = calls

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        items = tuple(ToolCall(name, {}, span=(0, len(text)), raw=text) for name in self._calls(text))
        return ParsedTurn(items, content=text, status="calls" if items else "final")


class FixedReward:
    """A reward that gives one value to every episode."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = value

    async def score(self, episode: Episode) -> Score:
        return Score(self.value)


@dataclass
class FakeWeights:
    """Weights of no model, for engines that have none."""

    version: int = 0

    def module(self, *, data: bool = True) -> None:
        return None

    def tensors(self, *, merged: bool = True) -> Iterator[tuple[str, Any]]:
        return iter(())

    def digests(self) -> Mapping[str, int]:
        return {}

    def save_config(self, folder: Path) -> None:
        pass

    def path(self) -> Path:
        raise FileNotFoundError("these weights are of no model, so there is no folder of them")


class FakeTrainer:
    """Writes the files of a checkpoint, and says which it took up."""

    def __init__(self) -> None:
        self.step = 0
        self.whole = True
        self.loaded: Path | None = None

    def gather_state(self, directory: Path) -> None:
        return None

    def save(self, folder: Path, gathered: Any) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(range(250)))
        (folder / "trainer" / "state.pt").write_bytes(bytes(range(200)))

    def saved_bytes(self) -> int:
        return 2**19

    def load(self, folder: Path, step: int) -> None:
        self.loaded, self.step = folder, step


def make_task(question: str = "What is 2 + 2?", *, id: str = "task-0", **fields: Any) -> Task:  # noqa: A002
    """A task of one user message; `fields` are those of Task."""
    return Task(id=id, messages=(Message("user", question),), **fields)


def make_episode_context(task: Task | None = None, *, episode_id: str = "task-0#0", seed: int = 0) -> EpisodeContext:
    """The context of one episode's tools."""
    return EpisodeContext(episode_id, task if task is not None else make_task(), random.Random(seed))


def make_build_context(name: str = "test", **fields: Any) -> BuildContext:
    """A component's build context; `fields` are those of BuildContext, the chat format is the fake one."""
    return BuildContext(name=name, **{"where": f"tests.{name}", "chat_format": FakeChatFormat(), **fields})


def one_trajectory(**fields: Any) -> Episode:
    """An episode of one trajectory from the fields of both."""
    own = {field.name: fields.pop(field.name) for field in dataclasses.fields(Trajectory) if field.name in fields}
    return Episode(trajectories=(Trajectory(**own),), **fields)


def make_episode(
    *texts: str,
    task: Task | None = None,
    calls: Mapping[int, Sequence[CallRecord]] | None = None,
    rewards: Sequence[RewardEntry] = (),
    answer: str | None = None,
    stop_reason: StopReason = "final",
    index: int = 0,
    **fields: Any,
) -> Episode:
    """A finished episode in which the model said `texts`, one a turn, tokens and mask included.

    `calls` are the answered calls by turn index; their texts follow the turn as tool messages. `answer` is what an end
    flag matched. `fields` are further ones of Episode, or of its only trajectory.
    """
    chat = FakeChatFormat()
    task = task if task is not None else make_task()
    calls = calls or {}
    ids = list(chat.open(task.messages, ()).ids)
    prompt_length, mask = len(ids), [0] * len(ids)
    messages, turns = list(task.messages), []
    for number, text in enumerate(texts):
        sampled = chat.say(Message("assistant", text))
        span = (len(ids), len(ids) + len(sampled))
        records = tuple(calls.get(number, ()))
        items = tuple(record.call for record in records)
        turns.append(Turn(number, (Segment("model", text, span),), items, records, "stop", content=text))
        answers = [Message("tool", record.result.text, name=record.call.name) for record in records]
        bridge = chat.bridge(sampled, answers, ()).ids if number + 1 < len(texts) else ()
        ids.extend((*sampled, *bridge))
        mask.extend([1] * len(sampled) + [0] * len(bridge))
        messages.extend((Message("assistant", text), *answers))
    return one_trajectory(
        **{
            "id": f"{task.id}#{index}",
            "task": task,
            "environment": task.environment or "default",
            "group": task.id,
            "index": index,
            "ids": tuple(ids),
            "loss_mask": tuple(mask),
            "logprobs": tuple(-1.0 * bit for bit in mask),
            "weight_versions": tuple(bit - 1 for bit in mask),
            "prompt_length": prompt_length,
            "turns": tuple(turns),
            "messages": tuple(messages),
            "stop_reason": stop_reason,
            "answer": answer,
            "rewards": tuple(rewards),
            **fields,
        }
    )
