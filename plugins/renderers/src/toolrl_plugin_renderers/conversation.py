"""Messages in the library's form.

The library takes OpenAI's dicts. Some families need more than toolrl's messages promise: Kimi writes a call's id into
the text, as `functions.NAME:INDEX`, and others find a result's tool by its id. So every call and every result gets an
id here; a result without one answers the next call that has no answer yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.types import Message, ToolCall
from toolrl_plugin_chat.control import well_formed
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
        if message.role == "assistant":
            calls = [(call, written_id(call, index, number, family)) for index, call in enumerate(message.tool_calls)]
            open_calls = [(call.id, written) for call, written in calls]
            result.append(_assistant(message, calls))
        elif message.role == "tool":
            result.append(_result(message, _answered(message.tool_call_id or "", open_calls)))
        else:
            result.append({"role": message.role, "content": message.content})
    if family.encodes_itself:
        return [_well_formed(entry) for entry in result]
    return result


def written_id(call: ToolCall, index: int, number: int, family: Family) -> str:
    """The id that stands in the text. `index` is the call's place in its turn, `number` the turn's place."""
    if family.native_ids:
        return call.id if _NATIVE.match(call.id) else f"functions.{call.name or NAMELESS}:{index}"
    return call.id or f"call_{number}_{index}"


def _assistant(message: Message, calls: Sequence[tuple[ToolCall, str]]) -> Dict:
    entry: Dict = {"role": "assistant", "content": message.content}
    if message.reasoning is not None:
        entry["reasoning_content"] = message.reasoning
    if calls:
        entry["tool_calls"] = [
            {"type": "function", "id": written, "function": {"name": call.name, "arguments": dict(call.arguments)}}
            for call, written in calls
        ]
    return entry


def _result(message: Message, call_id: str) -> Dict:
    entry: Dict = {"role": "tool", "content": message.content}
    if call_id:
        entry["tool_call_id"] = call_id
    if message.name:
        entry["name"] = message.name
    return entry


def _answered(given: str, open_calls: list[tuple[str, str]]) -> str:
    """The written id of the call that a result answers; takes the call off the list."""
    place = next((index for index, call in enumerate(open_calls) if call[0] == given), None)
    if place is None and not given and open_calls:
        place = 0
    return open_calls.pop(place)[1] if place is not None else given


def _well_formed(value: Any) -> Any:
    """Without halves of surrogate pairs, which the library's own encoder can't take."""
    if isinstance(value, str):
        return well_formed(value)
    if isinstance(value, Mapping):
        return {_well_formed(key): _well_formed(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed(item) for item in value]
    return value
