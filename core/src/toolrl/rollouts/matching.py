"""Which recorded turn a question goes on from: told by its messages, so that its tokens need not be rendered again.

Conversations are compared as clients send them back. What clients change on the way isn't compared: ids of calls, white
space around an assistant's text, the form of numbers in arguments, and reasoning that is left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolrl.types import CallRecord, Media, Message, ToolCall, ToolResult, ToolSpec, Turn


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """The end of a recorded turn."""

    place: int
    """Of its trajectory among those of the episode."""
    turn: Turn
    messages: tuple[Message, ...]
    """The conversation up to there, as the model read and wrote it."""

    @property
    def tokens(self) -> int:
        """The tokens of its trajectory up to there."""
        return self.turn.segments[-1].tokens[1]


class Question:
    """The messages of one question, cut behind the last assistant message: `head` and `tail`."""

    def __init__(self, messages: Sequence[Message], tools: Sequence[ToolSpec], role: str) -> None:
        own = [place for place, message in enumerate(messages, 1) if message.role == "assistant"]
        cut = own[-1] if own else 0
        self.messages, self.head, self.tail = messages, messages[:cut], messages[cut:]
        offered = [[tool.as_function(), tool.markers] for tool in tools]
        self._lines = [_line([role, offered]), *map(_line, _keys(messages))]
        self.key = _digest(self._lines[: cut + 1])
        """Of `head`, with role and tools."""

    def key_with(self, answer: Message) -> bytes:
        """Of all messages and the answer to them."""
        return _digest([*self._lines, *map(_line, _keys([answer]))])


class TurnEnds:
    """The turns that were asked in an episode, and what came of their calls."""

    def __init__(self) -> None:
        self._ends: dict[bytes, list[TurnEnd]] = {}
        self._calls: dict[str, ToolCall] = {}
        self._records: dict[str, CallRecord] = {}

    def add(self, question: Question, end: TurnEnd, forms: Sequence[Message]) -> None:
        """A turn that answers a question; `forms` are the messages in which a client may send it back."""
        for key in {question.key_with(form) for form in forms}:
            self._ends.setdefault(key, []).append(end)
        self._calls |= {call.id: call for call in end.turn.message.tool_calls}

    def find(self, question: Question, is_free: Callable[[TurnEnd], bool]) -> TurnEnd | None:
        """The turn that a question goes on from. Of several that say the same: the one whose calls have the ids that
        are sent back, else the newest that nothing goes on from yet."""
        found = [end for end in self._ends.get(question.key, ()) if _same_reasoning(end.messages, question.head)]
        ids = _call_ids(question.head)
        return max(found, key=lambda end: (_call_ids(end.messages) == ids, is_free(end), end.turn.index), default=None)

    def record(self, records: Sequence[CallRecord]) -> None:
        """What the environment's own tools answered."""
        self._records |= {record.call.id: record for record in records}

    def read_answers(self, question: Question) -> None:
        """Record the answers that a question's last tool messages hold: to the call of that id or, where ids were
        changed, to the call in this place of the turn. The first answer to a call counts."""
        same = self._ends.get(question.key)
        turn: Sequence[ToolCall] = same[0].turn.message.tool_calls if same else ()
        sent = [*question.head[-1:], *question.tail]
        for message, place in zip(sent, _places(sent), strict=True):
            if message.role == "tool":
                call = self._calls.get(message.tool_call_id or "") or next(iter(turn[place : place + 1]), None)
                if call is not None:
                    self._records.setdefault(call.id, CallRecord(call, ToolResult(message.content, message.media)))

    def with_calls(self, turn: Turn) -> Turn:
        """The turn with the answers to its calls."""
        calls = tuple([self._records[item.id] for item in turn.items if item.id in self._records])
        return replace(turn, calls=calls, tool_seconds=max((call.seconds for call in calls), default=0.0))


# What of a message is compared.


def _keys(messages: Sequence[Message]) -> Iterator[list[Any]]:
    for message, place in zip(messages, _places(messages), strict=True):
        if message.role == "assistant":
            calls = [[call.name, _canonical(call.arguments)] for call in message.tool_calls]
            yield [message.role, message.content.strip(), calls]
        else:
            yield [message.role, place, message.content, [_media_key(item) for item in message.media]]


def _places(messages: Sequence[Message]) -> Iterator[int]:
    """Of tool messages: the place of their call in the turn before. 0 for all others."""
    calls: list[str] = []
    answered = 0
    for message in messages:
        if message.role == "tool":
            name = message.tool_call_id
            yield calls.index(name) if name and name in calls else answered
            answered += 1
        else:
            yield 0
        if message.role == "assistant":
            calls, answered = [call.id for call in message.tool_calls], 0


def _canonical(arguments: Mapping[str, Any]) -> Any:
    """Arguments in which 1.0 is 1."""
    text = json.dumps(arguments, default=str)
    return json.loads(text, parse_float=lambda it: int(value) if (value := float(it)).is_integer() else value)


def _media_key(item: Media) -> list[Any]:
    if not hasattr(item.data, "tobytes"):
        return [item.kind, repr(item.data)]
    form = [str(getattr(item.data, name, "")) for name in ("size", "mode", "shape", "dtype")]  # Of pillow, of numpy.
    return [item.kind, form, _digest([item.data.tobytes()]).hex()]


def _line(key: Any) -> bytes:
    return json.dumps(key, sort_keys=True, default=str).encode()


def _digest(lines: Sequence[bytes]) -> bytes:
    return hashlib.blake2b(b"\n".join(lines), digest_size=16).digest()


def _call_ids(messages: Sequence[Message]) -> list[str]:
    return [call.id for message in messages for call in message.tool_calls]


def _same_reasoning(known: Sequence[Message], sent: Sequence[Message]) -> bool:
    """Also where it was left out."""
    pairs = [(ours.reasoning or "", theirs.reasoning or "") for ours, theirs in zip(known, sent, strict=True)]
    return all(not theirs.strip() or theirs.strip() == ours.strip() for ours, theirs in pairs)
