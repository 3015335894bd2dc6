"""Server-sent events with bounded messages: a stream of bytes is cut into events, and each gets a fitting message."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolrl_plugin_mcp.messages import LongMessage, MessageBuffer, fit_message

_LINE_END = re.compile(rb"(\r\n|\n|\r)")
_DATA = b"data:"
_DATA_FIELD = re.compile(rb"(?:\A|(?<=[\r\n]))data:")


class EventReader:
    """Cuts a stream into events."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of an event."""
        self._buffer = MessageBuffer(limit)
        self._at_line_start = True
        self._after_return = False
        """The last byte was a carriage return: a line feed that follows belongs to it."""

    @property
    def long(self) -> LongMessage | None:
        """The message of the event under way, if it is too long already."""
        event = self._buffer.long
        return None if event is None else _long_parts(event)[1]

    def read(self, chunk: bytes) -> Iterator[bytes | LongMessage]:
        """The events that end in this chunk, each with the empty line that ends it."""
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        if chunk:
            self._after_return = chunk.endswith(b"\r")
        for piece in filter(None, _LINE_END.split(chunk)):
            ends_line = piece in (b"\n", b"\r", b"\r\n")
            if ends_line and self._buffer.empty:
                continue  # a further empty line between events
            self._buffer.add(piece)
            if not ends_line:
                self._at_line_start = False
            elif self._at_line_start:
                yield self._buffer.take()
            else:
                self._at_line_start = True


async def fit_event(event: bytes | LongMessage, limit: int, request_id: int | str | None = None) -> bytes:
    """An event as the SDK gets it, with the message that `fit_message` makes of its own; empty if nothing is left."""
    if isinstance(event, LongMessage):
        fields, message = _long_parts(event)
        return make_event(fields, await fit_message(message, limit, request_id))
    lines = event.splitlines()
    data = b"\n".join(line.removeprefix(_DATA).removeprefix(b" ") for line in lines if line.startswith(_DATA))
    fitting = await fit_message(data, limit)
    return event if fitting is data else make_event(lines, fitting)


def make_event(lines: list[bytes], message: bytes) -> bytes:
    """An event with this message and the other fields of `lines`: its id counts where a stream is resumed."""
    fields = [line for line in lines if line and not line.startswith((_DATA, b":"))]
    if message:
        fields.append(b"data: " + message)
    return b"\n".join(fields) + b"\n\n" if fields else b""


def _long_parts(event: LongMessage) -> tuple[list[bytes], LongMessage]:
    """The lines before the data of an event that is too long, and its message."""
    before, *data = _DATA_FIELD.split(event.head, maxsplit=1)
    return before.splitlines(), LongMessage(data[0] if data else b"", event.tail)
