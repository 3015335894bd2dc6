"""The turns of one conversation with an API.

The turn loop and the episode's model work with tokens: which conversation a question goes on from, what still fits, how
long a history is. Here they are those of `Characters`, three characters each; no record holds them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from toolrl.errors import ParserError
from toolrl.rollouts.trajectory import TrajectoryRun
from toolrl.types import (
    CallError,
    Generation,
    Message,
    ParsedTurn,
    Sampling,
    Segment,
    ToolCall,
    ToolSpec,
    Trajectory,
    Turn,
)

if TYPE_CHECKING:
    from toolrl_plugin_api.engine import ApiEngine


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """The message that an API answered with."""

    content: str = ""
    calls: tuple[ToolCall | CallError, ...] = ()
    """As the API read them, `raw` the text of the arguments. Empty where the environment's parser reads `content`."""
    reasoning: str | None = None
    finish: Literal["stop", "length", "abort", "context_full"] = "stop"
    """`abort`: a content filter withheld it. `context_full`: the messages don't fit into the model's context."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """`Turn.usage`."""


class ChatRun(TrajectoryRun):
    """Asks for the turns of one trajectory, one at a time."""

    _is_full = False

    def __init__(self, environment: Any, api: ApiEngine, *more: Any) -> None:
        nobody: Any = None
        super().__init__(environment, nobody, *more)
        self._api = api

    @property
    def room(self) -> int:
        return 0 if self._is_full else super().room

    async def turn(
        self, specs: Sequence[ToolSpec], chance: Random, *, max_tokens: int | None = None, stop: Sequence[str] = ()
    ) -> tuple[Turn, str | None]:
        """See `TrajectoryRun`."""
        started, index, limits = time.perf_counter(), next(self._numbers[0]), self._limits
        longest = min(limits.max_turn_tokens, max_tokens or limits.max_turn_tokens, self.room)
        how = (limits.temperature, limits.top_p, limits.top_k, limits.min_p, tuple(stop))
        sampling = Sampling(longest, *how, seed=chance.getrandbits(63))
        answer = await self._api.complete(self.messages, specs, sampling, session=self.session)
        self._is_full = answer.finish == "context_full"
        finish: Any = "length" if self._is_full else answer.finish
        parsed = self._parse(answer, specs)
        items = tuple([replace(item, id=f"call_{next(self._numbers[1])}") for item in parsed.items])
        said = _said(answer, items, answer.reasoning or parsed.reasoning)
        turn = Turn(
            index=index,
            segments=(Segment("model", answer.content, self._append(said, finish)),),
            items=items,
            calls=(),
            finish=finish,
            content=parsed.content,
            reasoning=said.reasoning,
            generate_seconds=time.perf_counter() - started,
            usage=answer.usage,
        )
        self.turns.append(turn)
        self.messages.append(said)
        return turn, parsed.answer

    def _parse(self, answer: ChatAnswer, specs: Sequence[ToolSpec]) -> ParsedTurn:
        finish: Literal["stop", "length"] = "stop" if answer.finish == "stop" else "length"
        try:
            parsed = self._environment.parser.parse(answer.content, tools=specs, finish=finish)
        except Exception as error:
            raise ParserError(f"parse() raised {type(error).__name__}: {error}") from error
        if answer.calls:
            parsed = replace(parsed, items=answer.calls, status="calls")
        return self._environment.end_flags.read(parsed, answer.content)

    def _append(self, said: Message, finish: Any) -> tuple[int, int]:
        """Append the answer; the span of its tokens."""
        start, ids = len(self._buffer), self._environment.chat.bridge((), [said], ()).ids
        self._buffer.sampled(ids, [0.0] * len(ids), [0] * len(ids))
        self.text = type(self.text)(self._environment.chat, start)
        self.text.extend(Generation(ids, (), finish))
        return start, start + len(ids)

    def result(self) -> Trajectory:
        """What it is so far, without tokens; a turn has as many as the API counted."""
        turns = [
            replace(turn, segments=tuple([replace(it, tokens=(0, turn.sampled_tokens)) for it in turn.segments]))
            for turn in self.turns
        ]
        return Trajectory(
            prompt_length=int(self.turns[0].usage.get("prompt_tokens", 0)) if self.turns else 0,
            turns=tuple(turns),
            messages=tuple(self.messages),
            role=self.role,
            trained=self.role not in self._environment.untrained_roles,
        )


def _said(answer: ChatAnswer, items: Sequence[ToolCall | CallError], reasoning: str | None) -> Message:
    """The answer as it is sent back: with calls that can't be read, too, as their results name them."""
    calls = [
        ToolCall(item.name or "unnamed", {}, id=item.id) if isinstance(item, CallError) else item
        for item in items[: len(answer.calls)]
    ]
    return Message("assistant", answer.content, tool_calls=tuple(calls), reasoning=reasoning)
