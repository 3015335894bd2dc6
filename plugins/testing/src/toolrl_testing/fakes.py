"""Small components that behave exactly, without a model: for tests of plugins and of toolrl itself.

`FakeChatFormat` makes one token of each character and of each mark, so that a test can count by eye. `ScriptedEngine`
says what it is told to say. `RecordingToolset` remembers what was asked of it. The `make_…` functions fill in what a
test doesn't care about.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext, ChatFormat, EpisodeContext, ToolSession, WeightSource
from toolrl.types import (
    CallRecord,
    Decoded,
    Episode,
    Generation,
    Message,
    Rendered,
    RewardEntry,
    Role,
    Sampling,
    Score,
    Segment,
    StopReason,
    Task,
    ToolCall,
    ToolResult,
    ToolSpec,
    Turn,
)

_FIRST_MARK = 0x110000
"""Above all characters."""
END_ID = _FIRST_MARK
_ROLE_IDS: dict[Role, int] = {
    "system": _FIRST_MARK + 1,
    "user": _FIRST_MARK + 2,
    "assistant": _FIRST_MARK + 3,
    "tool": _FIRST_MARK + 4,
}
_MARK_TEXT = {END_ID: "<|end|>", **{number: f"<|{role}|>" for role, number in _ROLE_IDS.items()}}


@dataclass(frozen=True)
class _AddedToken:
    content: str
    special: bool = True
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class CharTokenizer:
    """A tokenizer with the part of transformers' interface that chat formats and engines use. Each character is a
    token, `ord` its id; the special tokens are `<|end|>`, which is the end of sequence, and a mark for each role."""

    eos_token, eos_token_id = _MARK_TEXT[END_ID], END_ID
    bos_token = bos_token_id = chat_template = None
    all_special_ids: Sequence[int] = tuple(_MARK_TEXT)

    def __init__(self) -> None:
        self.added_tokens_decoder = {number: _AddedToken(text) for number, text in _MARK_TEXT.items()}
        self._ids = {text: number for number, text in _MARK_TEXT.items()}
        self._marks = re.compile("(" + "|".join(map(re.escape, self._ids)) + ")")

    def __len__(self) -> int:
        return END_ID + len(_MARK_TEXT)

    def __call__(self, text: str, *, split_special_tokens: bool = False, **options: Any) -> dict[str, list[int]]:
        pieces = [text] if split_special_tokens else self._marks.split(text)
        ids = [[self._ids[piece]] if piece in self._ids and not split_special_tokens else list(map(ord, piece))
               for piece in pieces]  # fmt: skip
        return {"input_ids": [number for piece in ids for number in piece]}

    def encode(self, text: str, **options: Any) -> list[int]:
        return self(text, **options)["input_ids"]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False, **options: Any) -> str:
        kept = [number for number in ids if not (skip_special_tokens and number in _MARK_TEXT)]
        return "".join(self.convert_ids_to_tokens(number) for number in kept)

    def convert_ids_to_tokens(self, number: int) -> str:
        return _MARK_TEXT.get(number) or chr(number)


class FakeChatFormat:
    """Each character is a token, `ord` its id; each role has a mark, and one mark ends every message. Tools stand as
    JSON lines in a system message of their own, calls in hermes form, thinking in `<think>` tags."""

    end_ids: Sequence[int] = (END_ID,)

    def open(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        ids: list[int] = []
        if tools:
            lines = "\n".join(json.dumps(spec.as_function(), ensure_ascii=False) for spec in tools)
            ids.extend(self._message(Message("system", lines)))
        return Rendered((*ids, *self._messages(messages), _ROLE_IDS["assistant"]))

    def bridge(self, sampled_ids: Sequence[int], messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Rendered:
        end = () if sampled_ids and sampled_ids[-1] == END_ID else (END_ID,)
        return Rendered((*end, *self._messages(messages), _ROLE_IDS["assistant"]))

    def say(self, message: Message) -> tuple[int, ...]:
        return (*self.inline(_spoken(message)), END_ID)

    def inline(self, text: str) -> tuple[int, ...]:
        return tuple(map(ord, text))

    def decode(self, ids: Sequence[int]) -> Decoded:
        ids = ids[:-1] if ids and ids[-1] == END_ID else ids
        pieces = [_MARK_TEXT.get(number) or chr(number) for number in ids]
        offsets = [0]
        for piece in pieces:
            offsets.append(offsets[-1] + len(piece))
        return Decoded("".join(pieces), tuple(offsets))

    def token_count(self, text: str) -> int:
        return len(text)

    def _messages(self, messages: Sequence[Message]) -> list[int]:
        return [number for message in messages for number in self._message(message)]

    def _message(self, message: Message) -> list[int]:
        return [_ROLE_IDS[message.role], *self.say(message)]


def _spoken(message: Message) -> str:
    thinking = f"<think>{message.reasoning}</think>" if message.reasoning is not None else ""
    calls = [json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in message.tool_calls]
    return thinking + message.content + "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)


@dataclass(frozen=True)
class Generated:
    """One `generate` that a ScriptedEngine answered."""

    session: str
    prompt: tuple[int, ...]
    sampling: Sampling
    generation: Generation


class ScriptedEngine:
    """An engine that says what it is told.

    `script` is a list of texts, which each session hears from the first on, or a function from the prompt's text to a
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
        self._said: Counter[str] = Counter()
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
        """How many generations it answered."""
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
        self._said.pop(session, None)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        self.version = version

    async def stop(self) -> None:
        self.running = False

    def _next_text(self, prompt: Sequence[int], session: str) -> str:
        if callable(self._script):
            return self._script(self._chat.decode(prompt).text)
        position = self._said[session]
        if position >= len(self._script):
            raise EngineError(
                f"the script has {len(self._script)} texts, and session {session!r} asks for one more",
                hint="Give ScriptedEngine a text for each generation of an episode.",
            )
        self._said[session] += 1
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
    """A toolset that remembers what was asked of it, in order, in `events`."""

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
    """(what, whom): `open`, `close`, `reward`, `opening` with the episode's id, `call` with the tool's name, `start`
    and `stop` with nothing."""

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
        """How often something was asked."""
        return sum(event == what for event, _ in self.events)

    def _note(self, what: str, whom: str = "") -> None:
        self.events.append((what, whom))
        if what in self.fails:
            raise RuntimeError(f"{what} fails, as it was told to")


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

    def module(self) -> None:
        return None

    def state_dict(self) -> Mapping[str, Any]:
        return {}

    def path(self) -> Path:
        raise FileNotFoundError("these weights are of no model, so there is no folder of them")


def make_task(question: str = "What is 2 + 2?", *, id: str = "task-0", **fields: Any) -> Task:  # noqa: A002
    """A task of one user message; `fields` are those of Task."""
    return Task(id=id, messages=(Message("user", question),), **fields)


def make_episode_context(task: Task | None = None, *, episode_id: str = "task-0#0", seed: int = 0) -> EpisodeContext:
    """What tools of one episode share."""
    return EpisodeContext(episode_id, task if task is not None else make_task(), random.Random(seed))


def make_build_context(name: str = "test", **fields: Any) -> BuildContext:
    """What a component is built with; `fields` are those of BuildContext, the chat format is the fake one."""
    return BuildContext(name=name, **{"where": f"tests.{name}", "chat_format": FakeChatFormat(), **fields})


def make_episode(
    *texts: str,
    task: Task | None = None,
    calls: Mapping[int, Sequence[CallRecord]] | None = None,
    rewards: Sequence[RewardEntry] = (),
    answer: str | None = None,
    stop_reason: StopReason = "no_call",
    index: int = 0,
    **fields: Any,
) -> Episode:
    """A finished episode in which the model said `texts`, one a turn, tokens and mask included.

    `calls` are the answered calls by turn index; their texts follow the turn as tool messages. `answer` is what an end
    flag matched. `fields` are further ones of Episode.
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
    return Episode(
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
