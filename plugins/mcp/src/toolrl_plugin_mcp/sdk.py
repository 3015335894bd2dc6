"""The official SDK `mcp` behind a small interface: one connection, its list of tools and its calls.

What a server says comes out as plain dicts, spelled as on the wire, so that nothing else depends on the SDK's classes.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import jsonschema
import mcp
import mcp_types as types
from jsonschema.protocols import Validator
from mcp.client.streamable_http import streamable_http_client

from toolrl.tools.threads import POOL
from toolrl.tools.validation import check_bound, compile_schema
from toolrl_plugin_mcp.signals import LifeSignals
from toolrl_plugin_mcp.sse import sse_streams

VERSION = importlib.metadata.version("mcp")

Streams = AbstractAsyncContextManager[tuple[Any, Any]]
"""A transport: it gives the streams that the SDK reads messages from and writes messages to."""


def http_streams(url: str, client: httpx2.AsyncClient, signals: LifeSignals, *, sse: bool) -> Streams:
    """The transport to a URL. It takes over `client`, which bounds the messages, and closes it."""
    return sse_streams(url, client, signals) if sse else _streamable_http_streams(url, client)


@asynccontextmanager
async def _streamable_http_streams(url: str, client: httpx2.AsyncClient) -> AsyncIterator[tuple[Any, Any]]:
    async with client, streamable_http_client(url, http_client=client, max_sse_event_size=None) as streams:
        yield streams


@asynccontextmanager
async def connect(streams: Streams, signals: LifeSignals) -> AsyncIterator[Link]:
    """Shake hands over a transport. Entered and left by one task; the link's methods may be awaited in any."""

    async def handle(message: Any) -> None:
        # A ValueError is a line on stdout that is no message: many servers print there.
        if isinstance(message, Exception) and not isinstance(message, ValueError):
            signals.doubt(f"{type(message).__name__}: {message}")

    info = types.Implementation(name="toolrl", version=importlib.metadata.version("toolrl-plugin-mcp"))
    async with mcp.Client(streams, cache=None, message_handler=handle, client_info=info) as client:
        yield Link(client)


class Link:
    """One connection whose handshake is done. Its methods raise MCPError for an error that the server answers with, and
    what a broken connection raises."""

    def __init__(self, client: mcp.Client) -> None:
        self._client = client
        self._output_schemas: dict[str, Any] = {}
        self._output_checks: dict[str, Validator] = {}
        """Compiled, of tools that were called."""
        # The SDK checks structured content on the event loop, which takes seconds for a long list: see `call_tool`.
        client.session.validate_tool_result = _leave_unchecked  # type: ignore[method-assign]

    async def list_tools(self) -> list[dict[str, Any]]:
        """All tools, page by page. A list that never ends is ended by its caller's time limit."""
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            try:
                page = _plain(await self._client.list_tools(cursor=cursor))
            except mcp.MCPError as error:
                if error.error.code == types.METHOD_NOT_FOUND:
                    return []
                raise
            tools.extend(page.get("tools") or ())
            following = page.get("nextCursor")
            if not following or following == cursor:
                self._output_schemas = {tool["name"]: tool.get("outputSchema") for tool in tools}
                self._output_checks = {}
                return tools
            cursor = following

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A `CallToolResult`; raises ValueError or RuntimeError for a result that is none, or doesn't fit the tool's
        output schema. Cancelling it cancels the server's call."""
        result = await self._client.call_tool(name, dict(arguments))
        if (schema := self._output_schemas.get(name)) is not None and not result.is_error:
            if "structured_content" not in result.model_fields_set:
                raise RuntimeError(f"the tool {name!r} has an output schema, and its answer no structured content")
            await POOL.submit(_check_output, name, schema, result.structured_content, self._output_checks)
        return _plain(result)


async def _leave_unchecked(name: str, result: types.CallToolResult) -> None:
    """In the place of the SDK's check."""


def _check_output(name: str, schema: Any, value: Any, compiled: dict[str, Validator]) -> None:
    """Check structured content. Raises RuntimeError if it doesn't fit, or the schema can't be used."""
    try:
        if name not in compiled:
            compiled[name] = compile_schema(schema)
        with check_bound():
            error = jsonschema.exceptions.best_match(compiled[name].iter_errors(value))
    except Exception as problem:  # a schema from outside can break the library in any way
        raise RuntimeError(f"its output schema can't be used: {problem!s:.300}") from problem
    if error is not None:
        where = error.json_path
        raise RuntimeError(f"its structured content doesn't fit the output schema: {where}: {error.message:.300}")


def _plain(result: Any) -> dict[str, Any]:
    """A result as on the wire."""
    plain: dict[str, Any] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return plain
