"""Messages in the library's form.

The library takes OpenAI's dicts. Some families need more than toolrl's messages promise: Kimi writes a call's id into
the text, as `functions.NAME:INDEX`, and others find a result's tool by its id. So every call and every result gets an
id here; a result without one answers the next call that has no answer yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from toolrl.types import Message, ToolCall
from toolrl_plugin_chat.control import map_texts, well_formed
from toolrl_plugin_renderers.families import Family

NAMELESS = "unknown"
"""The tool that answers a call without a readable name."""

_NATIVE = re.compile(r"[^\s.:]+\.[^\s:]+:\d+\Z")

Dict = dict[str, Any]


def dicts(messages: Sequence[Message], family: Family) -> list[Dict]:
    """All messages of a conversation."""
    result: list[Dict] = []
    open_calls: list[tuple[str, str]] = []  # given id, written id
    for number, message in enumerate(messages):
        entry: Dict = {"role": message.role, "content": message.content}
        if message.role == "assistant":
            ids = [written_id(call, index, number, family) for index, call in enumerate(message.tool_calls)]
            open_calls = [(call.id, written) for call, written in zip(message.tool_calls, ids, strict=True)]
            if message.reasoning is not None:
                entry["reasoning_content"] = message.reasoning
            if ids:
                entry["tool_calls"] = [
                    _call(call, written) for call, written in zip(message.tool_calls, ids, strict=True)
                ]
        elif message.role == "tool":
            given = {"tool_call_id": _answered(message.tool_call_id or "", open_calls), "name": message.name}
            entry |= {key: value for key, value in given.items() if value}
        result.append(entry)
    # The library's own encoder can't take halves of surrogate pairs.
    return map_texts(result, well_formed) if family.encodes_itself else result


def written_id(call: ToolCall, index: int, number: int, family: Family) -> str:
    """The id that stands in the text. `index` is the call's place in its turn, `number` the turn's place."""
    if family.native_ids:
        return call.id if _NATIVE.match(call.id) else f"functions.{call.name or NAMELESS}:{index}"
    return call.id or f"call_{number}_{index}"


def _call(call: ToolCall, written: str) -> Dict:
    return {"type": "function", "id": written, "function": {"name": call.name, "arguments": dict(call.arguments)}}


def _answered(given: str, open_calls: list[tuple[str, str]]) -> str:
    """The written id of the call that a result answers; takes the call off the list."""
    place = next((index for index, call in enumerate(open_calls) if call[0] == given), None)
    if place is None and not given and open_calls:
        place = 0
    return open_calls.pop(place)[1] if place is not None else given
