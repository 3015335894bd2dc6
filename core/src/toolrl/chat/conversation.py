"""Conversations of data rows, read and checked in one way for all data sets.

`read_messages` takes every form in which a row holds messages. It puts the answers to parallel calls into the order of
their calls, because chat templates and parsers tell answers apart by their place alone. `check_question` and
`check_demonstration` say whether a conversation can be sampled on or trained on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from toolrl.chat.message_reading import read_message, short
from toolrl.chat.row_remarks import remark
from toolrl.errors import DataError
from toolrl.types import Message, ToolCall

_OPENS = re.compile(r"\[?\s*\{")
_OPENS_AS_JSON = re.compile(r'\[\s*\{\s*"')
_SAYS = {"content", "tool_calls", "function_call"}
_LIKE_MESSAGES = re.compile(
    r"""['"](?:role|from)['"]\s*:\s*['"](?:system|developer|user|human|assistant|gpt|tool)['"]"""
)


def read_messages(
    value: Any, path: str = "messages", place: Callable[[Sequence[Message]], Sequence[Message]] | None = None
) -> tuple[Message, ...]:
    """Messages: a text, which is the user's; a list in OpenAI's form, in ShareGPT's or of `Message`; or a list as JSON
    text. `place` puts images into the messages while they are in the row's order. Raises DataError, which names the
    place within the row, `path`."""
    value = from_text(value, path)
    if isinstance(value, Mapping | bytes) or not isinstance(value, Sequence) or not value:
        raise DataError(f"{path!r} is {short(value)}, expected a text or a list of messages")
    messages: Sequence[Message] = [read_message(item, f"{path}[{index}]") for index, item in enumerate(value)]
    return _ordered(messages if place is None else place(messages), path)


def from_text(value: Any, path: str) -> Any:
    """The list of messages of a JSON text; a list of the user's message for any other text; another value as it is.
    Raises DataError for a text that only looks like messages."""
    if not isinstance(value, str):
        return value
    found = _from_json(value, path)
    return [{"role": "user", "content": value}] if found is None else found


def _from_json(text: str, path: str) -> list[Any] | None:
    bare = text.strip()
    if not _OPENS.match(bare):
        return None
    try:
        read, end = json.JSONDecoder().raw_decode(bare)
    except (ValueError, RecursionError) as error:
        # A text may begin with messages and go on; one that is nothing else, or breaks off, was meant as messages.
        if _LIKE_MESSAGES.search(bare) is None or not (bare[-1] in "]}" or _OPENS_AS_JSON.match(bare)):
            return None
        hint = "Write the column as JSON: json.dumps(messages), not str(messages)."
        raise DataError(f"{path!r} is {short(text)}, messages that aren't JSON: {error}", hint=hint) from None
    if end < len(bare):
        return None
    if isinstance(read, dict) and _is_spoken(read):
        raise DataError(f"{path!r} is {short(text)}, expected a text or a list of messages")
    return read if isinstance(read, list) and all(map(_is_spoken, read)) else None


def _is_spoken(item: Any) -> bool:
    """Whether a value of JSON looks like a message."""
    if not isinstance(item, dict):
        return False
    return {"from", "value"} <= set(item) or ("role" in item and bool(_SAYS & set(item)))


# Answers and their calls.


def _ordered(messages: Sequence[Message], path: str) -> tuple[Message, ...]:
    """The messages, with the answers to a turn's calls in the order of the calls. Raises DataError for an answer
    without a call, and for a call without an answer unless it is the last turn."""
    ordered: list[Message] = []
    while (start := len(ordered)) < len(messages):
        message = messages[start]
        end = start + 1
        while end < len(messages) and messages[end].role == "tool":
            end += 1
        answers = messages[start + 1 : end]
        ordered.append(message)
        if message.role == "tool":
            raise DataError(f"'{path}[{start}]' is a tool's answer and follows no assistant message")
        if message.role != "assistant" and answers:
            raise DataError(f"'{path}[{start + 1}]' is a tool's answer and follows no assistant message")
        if not message.tool_calls:
            _check_without_calls(answers, path, start + 1)
            ordered += answers
        elif answers or end < len(messages):
            ordered += _by_call(message.tool_calls, answers, path, start)
    return tuple(ordered)


def _check_without_calls(answers: Sequence[Message], path: str, start: int) -> None:
    """The answers to calls that stand in the assistant's text, if there are any."""
    for place, answer in enumerate(answers, start):
        if answer.tool_call_id:
            raise DataError(
                f"'{path}[{place}].tool_call_id' is {answer.tool_call_id!r}, and {path}[{start - 1}] has no tool_calls"
            )
    if answers:
        remark(
            "answer.uncalled",
            f"'{path}[{start}]' is a tool's answer, and {path}[{start - 1}] has no tool_calls: its text has to hold the"
            " call as the parser reads it",
        )


def _by_call(calls: Sequence[ToolCall], answers: Sequence[Message], path: str, turn: int) -> list[Message]:
    """The answers in the order of their calls: by id, else by the tool's name, else by place."""
    ids = [call.id for call in calls]
    named = [each for each in ids if each]
    if len(set(named)) < len(named):
        raise DataError(f"'{path}[{turn}].tool_calls' have one id twice: {', '.join(named)}")
    found: dict[int, Message] = {}
    rest: list[tuple[int, Message]] = []
    for place, answer in enumerate(answers, turn + 1):
        if not answer.tool_call_id or not named:
            if answer.tool_call_id:
                text = f"'{path}[{place}].tool_call_id' has no effect: the calls of {path}[{turn}] have no ids"
                remark("answer.id", text)
            rest.append((place, answer))
            continue
        if answer.tool_call_id not in ids:
            raise DataError(
                f"'{path}[{place}].tool_call_id' is {answer.tool_call_id!r}, which no call of {path}[{turn}] has; "
                f"expected one of {', '.join(named)}"
            )
        index = ids.index(answer.tool_call_id)
        if index in found:
            raise DataError(f"'{path}[{place}]' answers the call {answer.tool_call_id!r} a second time")
        found[index] = answer
    for place, answer in sorted(rest, key=lambda each: not each[1].name):  # those with a name choose first
        left = [index for index in range(len(calls)) if index not in found]
        fitting = [index for index in left if answer.name in (None, "", calls[index].name)]
        if not fitting:
            what = f"the tool {answer.name!r}" if answer.name and left else "a call"
            raise DataError(f"'{path}[{place}]' answers {what} that {path}[{turn}] doesn't make")
        found[fitting[0]] = answer
    missing = [index for index in range(len(calls)) if index not in found]
    if missing:
        index = missing[0]
        raise DataError(
            f"'{path}[{turn}].tool_calls[{index}]' ({calls[index].name}) has no answer before the next turn"
        )
    return [found[index] for index in range(len(calls))]


def in_call_order(messages: Sequence[Message]) -> list[Message]:
    """The messages of a request, with the answers to a turn's calls in the order of the calls if the ids tell it.
    Refuses nothing: clients may leave answers out."""
    ordered: list[Message] = []
    places: dict[str | None, int] = {}
    for message in messages:
        start = len(ordered)
        if message.role == "tool" and message.tool_call_id in places:
            while start and ordered[start - 1].role == "tool" and _later(ordered[start - 1], message, places):
                start -= 1
        elif message.role != "tool":
            places = {call.id: place for place, call in enumerate(message.tool_calls) if call.id}
        ordered.insert(start, message)
    return ordered


def _later(one: Message, other: Message, places: Mapping[str | None, int]) -> bool:
    """Whether an answer belongs to a later call than another one."""
    return places.get(one.tool_call_id, -1) > places[other.tool_call_id]


# What a conversation may be used for.


def check_question(messages: Sequence[Message]) -> None:
    """Raises DataError for a conversation that the assistant has ended: nothing is asked."""
    if messages and messages[-1].role == "assistant":
        raise DataError(
            "the messages end with the assistant's, expected the user's or a tool's: the solution would be in the "
            "prompt",
            hint="Leave it out, or name the question's column, such as `fields: {prompt: prompt}`. `toolrl sft` takes "
            "whole conversations.",
        )


def check_demonstration(messages: Sequence[Message]) -> None:
    """Raises DataError for a conversation in which the assistant says nothing that is trained on, or speaks twice in
    a row."""
    if not any(message.role == "assistant" for message in messages):
        raise DataError(
            "it is no demonstration: it needs a user message and then an assistant message, got roles "
            f"{[message.role for message in messages]}",
            hint="Use a data set whose messages hold the assistant's turns.",
        )
    for message, following in pairwise(messages):
        if message.role == following.role == "assistant":
            raise DataError(
                "two assistant messages follow each other",
                hint="Join them, or put the tool's or the user's message between them.",
            )
    if not any(message.role == "assistant" and message.trained for message in messages):
        raise DataError("no message is in the loss: the weight of each assistant message is 0")
    if messages[-1].role != "assistant":
        text = f"the last {messages[-1].role} message has no effect: no assistant message follows it"
        remark("demonstration.end", text)
