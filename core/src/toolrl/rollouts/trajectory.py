"""One trajectory while it is sampled: its tokens, which are only appended, its turns and its messages.

What was sampled is never decoded and encoded again: the prompt of a turn is that of the turn before it, what was
sampled, and what was given since.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from toolrl.chat.buffer import TokenBuffer
from toolrl.errors import EngineError, ExactnessError
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.turn import TurnReader, TurnText
from toolrl.types import (
    CallError,
    Generation,
    MediaInput,
    Message,
    ParsedTurn,
    Rendered,
    Sampling,
    StopReason,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
)


class SamplesEpisodes(Protocol):
    """What an episode needs of an engine."""

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation: ...

    async def close(self, session: str) -> None: ...


class TrajectoryRun:
    """Samples the turns of one trajectory, one at a time."""

    def __init__(
        self,
        environment: Environment,
        engine: SamplesEpisodes,
        limits: Limits,
        numbers: tuple[Iterator[int], Iterator[int]],
        session: str,
        role: str = "agent",
    ) -> None:
        """`numbers` are those of the next turn and of the next call, which all trajectories of an episode share;
        `session` is the engine's name for this one."""
        self._environment, self._engine, self._limits = environment, engine, limits
        self._numbers = numbers
        self._reader = TurnReader(environment.parser, environment.end_flags)
        self._buffer = TokenBuffer()
        self._media: list[MediaInput] = []
        self._routes, self._masks = b"", b""
        self._in_thinking = False
        self.text = TurnText(environment.chat, 0)
        """The last turn's."""
        self.session, self.role = session, role
        self.turns: list[Turn] = []
        self.messages: list[Message] = []

    def copy(self) -> TrajectoryRun:
        """Another one that goes on from here."""
        other = copy.copy(self)
        other._buffer = self._buffer.copy()
        other._media, other.turns, other.messages = self._media[:], self.turns[:], self.messages[:]
        return other

    def beginning(self, prompt: Rendered) -> int:
        """How many tokens it has, where this prompt begins with them and with its images; else 0."""
        ids, images = self._buffer.ids, [it.key for it in self._media]
        same = prompt.ids[: len(ids)] == ids and [it.key for it in prompt.media[: len(images)]] == images
        return len(ids) if same else 0

    def become(self, other: TrajectoryRun) -> None:
        """Take over what a copy has sampled since."""
        vars(self).update(vars(other))

    def restate(self, other: TrajectoryRun, end: int) -> None:
        """Begin with another's tokens up to `end`, as given."""
        self.give(Rendered(other.ids[:end], tuple([item for item in other._media if item.span[1] <= end])))

    @property
    def ids(self) -> tuple[int, ...]:
        """All tokens so far."""
        return self._buffer.ids

    @property
    def room(self) -> int:
        """Tokens that still fit."""
        return self._limits.max_episode_tokens - len(self._buffer)

    # Giving tokens.

    def open(self, specs: Sequence[ToolSpec]) -> StopReason | None:
        """Begin with `messages`; the reason to end, or None where there is room for a turn."""
        self.give(self._environment.chat.open(self.messages, specs))
        return None if self.room > 0 else "context_full"

    def extend(self, prompt: Rendered) -> bool:
        """Append what this prompt has behind the tokens so far, if it fits."""
        known = len(self._buffer)
        media = tuple(item.moved(-known) for item in prompt.media if item.span[0] >= known)
        return self.give(Rendered(prompt.ids[known:], media, prompt.in_thinking))

    def continued(self, messages: Sequence[Message], specs: Sequence[ToolSpec]) -> Rendered:
        """The prompt that these messages make behind the last turn."""
        bridge = self._environment.chat.bridge(self.text.ids, messages, specs)
        media = (*self._media, *(item.moved(len(self._buffer)) for item in bridge.media))
        return Rendered((*self._buffer.ids, *bridge.ids), media, bridge.in_thinking)

    def inline(self, answer: str) -> StopReason | None:
        """Append text inside the last turn, if it fits."""
        start, ids = len(self._buffer), self._environment.chat.inline(answer)
        if not self.give(Rendered(tuple(ids))):
            return "context_full"
        last = self.turns[-1]
        self.turns[-1] = replace(last, segments=(*last.segments, TurnText.tool_segment(answer, start, len(ids))))
        return None

    def give(self, given: Rendered) -> bool:
        """Append these tokens, if they fit. A prompt is there also where it leaves no room. Inside a turn no thinking
        block is open any more: it was closed before the call, or the call would be part of it."""
        start = len(self._buffer)
        if start and len(given.ids) >= self.room:
            return False
        (self._buffer.given if start else self._buffer.prompt)(given.ids)
        self._media.extend(item.moved(start) if start else item for item in given.media)
        self._in_thinking = given.in_thinking
        return True

    # Sampling.

    async def turn(
        self, specs: Sequence[ToolSpec], chance: Random, *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> tuple[Turn, str | None]:
        """Sample the next turn: the turn without answers to its calls, and the answer that an end flag found in it.
        `chance` seeds each generation; `max_tokens` and `stop` are limits besides those of the run."""
        started, index = time.perf_counter(), next(self._numbers[0])
        longest = min(self._limits.max_turn_tokens, max_tokens or self._limits.max_turn_tokens)
        parsed = await self._generate(specs, chance, longest, stop)
        text = self.text
        items = tuple([self._identified(item) for item in parsed.items])
        turn = Turn(
            index=index,
            segments=(text.segment(),),
            items=items,
            calls=(),
            finish=text.finish,
            content=parsed.content,
            reasoning=parsed.reasoning,
            generate_seconds=time.perf_counter() - started,
        )
        self.turns.append(turn)
        self.messages.append(turn.message)
        return turn, parsed.answer

    def _identified(self, item: ToolCall | CallError) -> ToolCall | CallError:
        return replace(item, id=f"call_{next(self._numbers[1])}", tokens=self.text.token_span(item.span))

    async def _generate(
        self, specs: Sequence[ToolSpec], chance: Random, longest: int, stop: Sequence[str]
    ) -> ParsedTurn:
        """Sample until the turn ends. A parser may go on after a stop string: a fence that is no call."""
        chat, limits = self._environment.chat, self._limits
        text = self.text = TurnText(chat, len(self._buffer))
        while True:
            left = min(longest - len(text.ids), self.room)
            sampling = Sampling(
                max_new_tokens=left,
                temperature=limits.temperature,
                top_p=limits.top_p,
                top_k=limits.top_k,
                min_p=limits.min_p,
                keep_masks=limits.keep_masks,
                stop=(*self._reader.stops(text.text, specs), *stop),
                stop_token_ids=tuple(chat.end_ids),
                seed=chance.getrandbits(63),
            )
            generation = await self._engine.generate(
                self._buffer.ids, sampling, session=self.session, media=tuple(self._media)
            )
            if len(generation.ids) > left:
                raise _wrong_count(generation, left)
            self._buffer.sampled(generation.ids, generation.logprobs, generation.versions)
            self._routes += generation.routes[len(self._routes) :]
            self._masks += generation.sampling_masks
            if limits.keep_masks and generation.ids and not generation.sampling_masks:
                raise EngineError("it records no sampling masks", hint="Set rollout.keep_sampling_masks to false.")
            text.extend(generation)
            parsed = self._reader.read(text, specs, in_thinking=self._in_thinking)
            if parsed.status != "continue" or text.stopped_by is None:
                return parsed
            if not generation.ids:
                raise _wrong_count(generation, left)  # It would be asked for ever.
            if len(text.ids) >= longest or self.room <= 0:
                text.cut()
                return self._reader.read(text, specs, in_thinking=self._in_thinking)

    def result(self) -> Trajectory:
        """What it is so far, checked. Raises ExactnessError."""
        return replace(
            self._buffer.trajectory(),
            turns=tuple(self.turns),
            messages=tuple(self.messages),
            media=tuple(self._media),
            routes=self._routes or None,
            sampling_masks=self._masks or None,
            role=self.role,
            trained=self.role not in self._environment.untrained_roles,
        )


def _wrong_count(generation: Generation, most: int) -> ExactnessError:
    return ExactnessError(
        f"asked for at most {most}, the engine gave {len(generation.ids)} tokens with finish {generation.finish!r}"
    )
