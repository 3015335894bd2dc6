"""The transport to a server that is started here: the SDK's own, to a process behind a guard.

The guard (`toolrl_common.process_guard`) ends the server and all that it started, so that nothing outlives the run.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from toolrl_common import process_guard
from toolrl_plugin_mcp.server_options import ServerOptions, plain_values
from toolrl_plugin_mcp.signals import LifeSignals

LAST_WORDS_SECONDS = 2.0
"""How long the end of stderr is waited for after stdout ended."""
_TAIL = 1000
"""Characters of stderr that are kept for messages."""
_CHUNK = 65536
_log = logging.getLogger(__name__)


class Tail:
    """The last of what a server wrote to stderr, without secrets. All of it goes to the log, at level debug."""

    def __init__(self, hide: Callable[[str], str], label: str) -> None:
        self._hide = hide
        self._label = label
        self._shown = ""
        self._rest = ""
        """A line that isn't complete: half a secret couldn't be found."""

    def add(self, text: str) -> None:
        """What came on stderr."""
        lines, newline, rest = (self._rest + text).rpartition("\n")
        if len(rest) > _CHUNK:
            lines, newline, rest = lines + newline + rest, "", ""
        self._rest = rest
        if lines:
            hidden = self._hide(lines)
            _log.debug("%s: stderr: %s", self._label, hidden)
            self._shown = f"{self._shown}{hidden}\n"[-_TAIL:]

    def show(self) -> str:
        """A few words for a message; empty where nothing was written."""
        text = (self._shown + self._hide(self._rest))[-_TAIL:].strip()
        return f"; its last words:\n{text}" if text else ""


@asynccontextmanager
async def stdio_streams(
    options: ServerOptions, signals: LifeSignals, *, hide: Callable[[str], str], label: str
) -> AsyncIterator[tuple[Any, Any]]:
    """Start the process, and end it and all that came of it when left."""
    guard = ["-I", "-S", process_guard.__file__, str(os.getpid()), str(options.command), *options.args]
    parameters = StdioServerParameters(
        command=sys.executable,
        args=guard,
        env=plain_values(options.env),
        cwd=options.cwd,
        encoding_error_handler="replace",
    )
    tail = Tail(hide, label)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as stderr, os.fdopen(writing, "w") as its_end:
        errors = asyncio.create_task(_read_errors(stderr, tail))
        try:
            async with stdio_client(parameters, its_end) as (read, write):
                its_end.close()  # The process has a copy.
                yield _WatchedMessages(read, signals, tail, errors), write
        finally:
            errors.cancel()
            await asyncio.wait([errors])


async def _read_errors(pipe: Any, tail: Tail) -> None:
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while data := await reader.read(_CHUNK):
            tail.add(data.decode(errors="replace"))
    finally:
        transport.close()


class _WatchedMessages:
    """The messages of a process; reports their end before the SDK answers the waiting calls with it."""

    def __init__(self, stream: Any, signals: LifeSignals, tail: Tail, errors: asyncio.Task[None]) -> None:
        self._stream = stream
        self._signals = signals
        self._tail = tail
        self._errors = errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Any:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> _WatchedMessages:
        return self

    async def __anext__(self) -> Any:
        try:
            item = await anext(self._stream)
            return _whole(item) if isinstance(item, ValidationError) else item
        except StopAsyncIteration:
            await asyncio.wait([self._errors], timeout=LAST_WORDS_SECONDS)
            self._signals.lost(f"it ended{self._tail.show()}")
            raise


def _whole(refused: ValidationError) -> Any:
    """The message of a refused line with its halves of characters replaced: a server that cuts texts makes them, and
    its caller would wait for the answer. The error itself where that is no message either."""
    try:
        parsed = json.loads(refused.errors()[0]["input"])
        text = json.dumps(parsed, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except (ValueError, TypeError, RecursionError):
        return refused
