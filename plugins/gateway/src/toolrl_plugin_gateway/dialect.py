"""What the dialects share: a question to the model, its answer, and how parts of messages are read.

A dialect is one API, a module with these functions:

    FIELDS                         the fields of a body
    read(body, known)              the question of a request's body; `known` is what it may refer to
    write(body, answer)            the response's body
    stream(body, response)         the same as server-sent events
    error(refusal)                 the body of a response that refuses

`read` raises RefusedError.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, Literal

from toolrl.types import CallError, Message, StopReason, ToolCall, ToolSpec, Turn

Json = dict[str, Any]
Event = tuple[str | None, Json | str]
"""The name and the data of a server-sent event."""
Dialect = ModuleType


class RefusedError(Exception):
    """A request that isn't answered: the HTTP status, a code for programs and a text for people.

    `details` are for programs, in dialects that have a place for them; `stop` is the limit of the run that was reached.
    """

    def __init__(
        self, status: int, code: str, message: str, *, details: Json | None = None, stop: StopReason | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.details, self.stop = details, stop

    @classmethod
    def invalid(cls, message: str) -> RefusedError:
        """A body that can't be answered."""
        return cls(400, "invalid_request", message)


@dataclass(slots=True)
class Known:
    """What a request may refer to: the responses of its episode."""

    responses: dict[str, list[Message]] = field(default_factory=dict)
    """Conversations of the responses API, by response."""
    items: dict[str, Json] = field(default_factory=dict)
    """Output items of the responses API, by their ids."""


@dataclass(frozen=True, slots=True)
class Question:
    """A request's body, as the model is asked."""

    messages: list[Message]
    """The conversation."""
    tools: list[ToolSpec]
    model: str
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    instructions: int = 0
    """Leading messages that aren't part of the conversation that a later request may continue."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """What the model is told besides the messages, by the field that asks for it."""
    allows_calls: bool = True
    """False: a call is text to the client."""
    prefilled: bool = False
    """The last message begins the answer."""
    ignored: tuple[str, ...] = ()
    """Fields without effect."""

    @property
    def prompt(self) -> list[Message]:
        """The messages with the hints: at the end of the first system message, or of the first user message."""
        if not self.hints:
            return self.messages
        roles = [message.role for message in self.messages]
        place = next((roles.index(role) for role in ("system", "user") if role in roles), None)
        text = "\n\n".join(self.hints.values())
        if place is None:
            return [Message("system", text), *self.messages]
        first = self.messages[place]
        shown = replace(first, content=f"{first.content}\n\n{text}" if first.content else text)
        return [*self.messages[:place], shown, *self.messages[place + 1 :]]


@dataclass(frozen=True, slots=True)
class Answer:
    """A sampled turn, as a client reads it."""

    turn: Turn
    text: str
    """Without calls and thinking, cut before a stop sequence. A call that couldn't be parsed is part of it."""
    stopped_by: str | None
    calls: list[ToolCall]

    @classmethod
    def of(cls, turn: Turn, question: Question) -> Answer:
        """The answer to this question."""
        calls = [item for item in turn.items if isinstance(item, ToolCall) and question.allows_calls]
        as_text = [item.raw for item in turn.items if isinstance(item, CallError) or not question.allows_calls]
        text = "\n".join(part for part in (turn.content, *as_text) if part)
        found = min(((text.find(it), it) for it in question.stop if it in text), default=None)
        return cls(turn, text, None, calls) if found is None else cls(turn, text[: found[0]], found[1], calls)

    @property
    def finish(self) -> Literal["calls", "length", "stop"]:
        return "calls" if self.calls else "stop" if self.turn.finish == "stop" else "length"

    @property
    def cut(self) -> StopReason | None:
        """How an episode ends of which this is the last turn, if the turn was cut."""
        ends: dict[str, StopReason] = {"length": "max_tokens", "abort": "aborted"}
        return None if self.calls else ends.get(self.turn.finish)

    @property
    def prompt_tokens(self) -> int:
        return self.turn.segments[0].tokens[0] if self.turn.segments else 0


def read_object(value: Any, what: str) -> Json:
    """Raises RefusedError for anything but a JSON object."""
    if not isinstance(value, dict):
        raise RefusedError.invalid(f"{what} is {type(value).__name__}, expected an object")
    return value


def read_list(value: Any, what: str) -> list[Json]:
    """Raises RefusedError for anything but a list of JSON objects; None is an empty one."""
    if value is not None and not isinstance(value, list):
        raise RefusedError.invalid(f"{what} is {type(value).__name__}, expected a list")
    return [read_object(item, f"{what}[{index}]") for index, item in enumerate(value or ())]


def read_limit(body: Json, *names: str) -> int | None:
    """The token limit that a body has under one of these names. Raises RefusedError."""
    for name in names:
        if (value := body.get(name)) is not None:
            if not isinstance(value, int) or value < 1:
                raise RefusedError.invalid(f"{name} is {value!r:.80}, expected a positive integer")
            return value
    return None


def read_stop(value: Any, what: str) -> tuple[str, ...]:
    """Stop sequences: one, a list, or None. Raises RefusedError."""
    stop = [value] if isinstance(value, str) else value or []
    if not isinstance(stop, list) or not all(isinstance(it, str) and it for it in stop):
        raise RefusedError.invalid(f"{what} is {value!r:.80}, expected texts")
    return tuple(stop)


def read_tool(value: Json, what: str) -> ToolSpec:
    """A function tool, in OpenAI's form. Raises RefusedError for another kind of tool."""
    if value.get("type", "function") != "function":
        raise RefusedError.invalid(f"{what} has type {value['type']!r:.80}: only function tools are supported")
    callers = value.get("allowed_callers")
    if value.get("defer_loading") or value.get("async") or (isinstance(callers, list) and "direct" not in callers):
        text = "defer_loading, async and allowed_callers without 'direct' are not supported: leave the tool out"
        raise RefusedError.invalid(f"{what}: {text}")
    try:
        return ToolSpec.from_function(value)
    except ValueError as error:
        raise RefusedError.invalid(f"{what}: {error}") from None


def read_arguments(text: Any, name: str, id: Any) -> ToolCall:  # noqa: A002
    """A call that a client quotes; arguments that are no JSON object stay in `raw`."""
    try:
        arguments: Any = json.loads(text) if isinstance(text, str) and text.strip() else text or {}
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        return ToolCall(str(name), arguments, id=str(id or ""))
    return ToolCall(str(name), {}, id=str(id or ""), raw=str(text))


def read_content(content: Any, what: str) -> str:
    """Text of a message in any dialect; parts are joined by line ends. Raises RefusedError for what is no text."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for index, part in enumerate(read_list(content, what)):
        match part:
            case {"type": "text" | "input_text" | "output_text", "text": str(text)}:
                texts.append(text)
            case {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case _:
                kind = f"{what}[{index}] of type {part.get('type')!r:.80}"
                raise RefusedError.invalid(f"{kind} is not supported: send text")
    return "\n".join(texts)


def named_tools(messages: Iterable[Message]) -> list[Message]:
    """The messages, with the name of its tool on each answer."""
    names: dict[str | None, str] = {}
    named = []
    for message in messages:
        names |= {call.id: call.name for call in message.tool_calls}
        if message.role == "tool" and message.name is None:
            message = replace(message, name=names.get(message.tool_call_id))
        named.append(message)
    return named


def check_history(question: Question) -> None:
    """Raises RefusedError for messages that the model would be shown in another sense: a tool's answer without a turn
    before it, whose conversation is held elsewhere or was cut, or an answer that was begun."""
    if question.prefilled:
        raise RefusedError.invalid("messages ends with an assistant message: a prefilled answer is not supported")
    first = next((message for message in question.messages if message.role in ("assistant", "tool")), None)
    if first is not None and first.role == "tool":
        raise RefusedError.invalid(
            "the first tool result answers no assistant message of this request: send the whole history"
        )


def dumps(value: Any) -> str:
    """A call's arguments as text."""
    return json.dumps(value, ensure_ascii=False)


def encode_events(events: Iterable[Event]) -> bytes:
    """Server-sent events as they go over the wire."""
    lines = []
    for name, data in events:
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        lines.append(f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n")
    return "".join(lines).encode(errors="replace")
