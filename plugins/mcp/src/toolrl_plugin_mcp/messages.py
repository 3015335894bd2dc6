"""Bounds a server's messages before the SDK parses them, the same for every transport.

The SDK parses, checks and copies a message on the event loop, however long it is; its own bound is fixed over SSE,
missing over stdio and for JSON bodies, and its breach ends the connection with all calls under way. So each transport
collects a message in a `MessageBuffer` and asks `fit_message` for what the SDK gets:

- a response longer than `max_message_bytes`, or of more values than `toolrl.bounded_json` reads, becomes a JSON-RPC
  error to its request, which says so;
- many text contents become one, joined as the model reads them;
- progress and log notifications, which nothing here reads, are left out.
"""

from __future__ import annotations

import itertools
import json
import logging
import re
from dataclasses import dataclass
from typing import Any

from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, jsonrpc_message_adapter

from toolrl.bounded_json import check_size
from toolrl.tools.threads import POOL

MOST_CONTENTS = 1000
"""Contents of a result that are kept one by one; the SDK checks each on the event loop."""
_SHORT = 64 * 1024
"""Bytes of a message that the SDK may get as it is."""
_EDGE = 4096
"""Bytes kept of both ends of a message that is too long: a response's id is before or after its result."""
_VALUE = rb'(?:-?\d+|"(?:[^"\\]|\\.)*")'
_START = re.compile(rb'\s*\{\s*((?:"(?:jsonrpc|id)"\s*:\s*%b\s*,\s*)*)"(\w+)"\s*:' % _VALUE)
"""The members before the first that isn't `jsonrpc` or `id`, and the name of that one."""
_END = re.compile(rb'((?:,\s*"(?:jsonrpc|id)"\s*:\s*%b\s*)+)\}\s*$' % _VALUE)
"""The members after the result. No text of a result ends so: a quote in a JSON string has a backslash before it."""
_ID = re.compile(rb'"id"\s*:\s*(%b)' % _VALUE)
_UNREAD = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:\s*"notifications/(?:progress|message)"')
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LongMessage:
    """A message longer than the limit, of which the two ends are left."""

    head: bytes
    tail: bytes = b""

    @property
    def is_response(self) -> bool:
        """False for a request or a notification of the server."""
        start = _START.match(self.head)
        return start is None or start[2] in (b"result", b"error")

    @property
    def id(self) -> int | str | None:
        """The id of the request that it answers; None if neither end has it."""
        for members in (_START.match(self.head), _END.search(self.tail)):
            if members is not None and (found := _ID.search(members[1])) is not None:
                value: int | str = json.loads(found[1])
                return value
        return None


class MessageBuffer:
    """Collects one message after another, each in pieces. Memory stays below the limit and one piece."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of a message."""
        self._limit = limit
        self._data = bytearray()
        self._tail: bytearray | None = None
        """The last bytes of a message that is too long, else None."""

    def add(self, piece: bytes) -> None:
        """The next bytes of the message."""
        if self._tail is not None:
            self._tail += piece[-_EDGE:]
            del self._tail[:-_EDGE]
            return
        self._data += piece
        if len(self._data) > self._limit:
            self._tail = self._data[-_EDGE:]
            del self._data[_EDGE:]

    @property
    def empty(self) -> bool:
        """Whether nothing of the next message has come."""
        return not self._data

    @property
    def long(self) -> LongMessage | None:
        """The message as far as it has come, if it is too long already."""
        return None if self._tail is None else LongMessage(bytes(self._data), bytes(self._tail))

    def take(self) -> bytes | LongMessage:
        """The message, which is complete; the next one begins."""
        message = self.long or bytes(self._data)
        self._data, self._tail = bytearray(), None
        return message


async def fit_message(message: bytes | LongMessage, limit: int, request_id: int | str | None = None) -> bytes:
    """A message as the SDK gets it; empty if it gets none. A thread works on a result of many contents. `request_id` is
    that of the request that only this stream answers."""
    if isinstance(message, LongMessage):
        return _refuse_long(message, limit, request_id)
    if _UNREAD.match(message):
        return b""
    # In a JSON string these quotes have backslashes, so this counts members and kinds alone.
    if len(message) <= _SHORT:
        return message
    try:
        check_size(message)
    except ValueError as error:
        return _refuse_large(message, str(error), request_id)
    if message.count(b'"type"') > MOST_CONTENTS:
        return await POOL.submit(_with_fewer_contents, message)
    return message


def parse_message(message: bytes) -> SessionMessage:
    """A message for the SDK. Halves of surrogate pairs and broken UTF-8 are replaced: a server that cuts texts makes
    them, and the SDK refuses them. Raises ValueError, or RecursionError, for what is no message."""
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(message, by_name=False))
    except ValueError:
        parsed = json.loads(message.decode(errors="replace"))
        if not isinstance(parsed, dict):
            raise
    text = json.dumps(parsed, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))


def dump_message(message: SessionMessage) -> bytes:
    """A message of the SDK as JSON."""
    return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode()


def refusal(request_id: int | str | None, limit: int) -> bytes:
    """The JSON-RPC error that takes the place of an answer longer than `limit` bytes."""
    return _error(
        request_id,
        f"The answer is too long: the server sent more than {limit} bytes in one message (option max_message_bytes of "
        "the toolset mcp), and none of it was kept. Ask for less at once.",
    )


def _error(request_id: int | str | None, text: str) -> bytes:
    error = {"code": INTERNAL_ERROR, "message": text}
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()


def _refuse_long(message: LongMessage, limit: int, request_id: int | str | None) -> bytes:
    answered = _answered(message, request_id)
    if answered is not None:
        return refusal(answered, limit)
    _left_out(message, f"more than {limit} bytes (max_message_bytes)")
    return b""


def _refuse_large(message: bytes, problem: str, request_id: int | str | None) -> bytes:
    """The same for a message of few bytes and many values: reading them would hold up the event loop."""
    ends = LongMessage(message[:_EDGE], message[-_EDGE:])
    answered = _answered(ends, request_id)
    if answered is not None:
        return _error(answered, f"The answer is too large: {problem}. None of it was kept. Ask for less at once.")
    _left_out(ends, f"too many values ({problem})")
    return b""


def _answered(message: LongMessage, request_id: int | str | None) -> int | str | None:
    """The request that a message answers; None for no response, or one without an id."""
    if not message.is_response:
        return None
    return request_id if message.id is None else message.id


def _left_out(message: LongMessage, why: str) -> None:
    kind = "response without an id" if message.is_response else "request or notification"
    _log.warning("an MCP server sent a %s of %s: it is left out", kind, why)


def _with_fewer_contents(message: bytes) -> bytes:
    """The message with adjacent texts of its result joined, and at most `MOST_CONTENTS` contents."""
    try:
        parsed = json.loads(message)
        contents = parsed["result"]["content"]
        if not isinstance(contents, list):
            return message
        parsed["result"]["content"] = _joined(contents)
        return json.dumps(parsed).encode()
    except (ValueError, TypeError, KeyError, RecursionError):
        return message  # Another kind of message, or one that the SDK refuses in its own words.


def _joined(contents: list[Any]) -> list[Any]:
    joined: list[Any] = []
    for are_texts, group in itertools.groupby(contents, _is_text):
        if are_texts:
            joined.append({"type": "text", "text": "\n\n".join(content["text"] for content in group)})
        else:
            joined += group
    left_out = len(joined) - MOST_CONTENTS
    if left_out > 0:
        joined[MOST_CONTENTS:] = [{"type": "text", "text": f"[{left_out} more contents left out]"}]
    return joined


def _is_text(content: Any) -> bool:
    return isinstance(content, dict) and content.get("type") == "text" and isinstance(content.get("text"), str)
