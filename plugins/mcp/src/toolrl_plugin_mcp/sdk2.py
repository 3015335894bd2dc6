"""A link over the `Client` of mcp 2.x."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from toolrl_plugin_mcp.sdk import BaseLink, Link, Signals, Streams, client_info, handler, mcp, mended, plain

_log = logging.getLogger(__name__)


@asynccontextmanager
async def connect(streams: Streams, signals: Signals) -> AsyncIterator[Link]:
    more = {"message_handler": handler(signals), "client_info": client_info()}
    client = mcp.Client(mended(streams, signals), cache=None, **more)
    async with client:
        capabilities = client.server_capabilities
        listener: asyncio.Task[None] | None = None
        if client.session.discover_result is not None and getattr(capabilities.tools, "list_changed", False):
            listener = asyncio.create_task(_listen(client, signals))
        try:
            yield _Link2(client, client.protocol_version, capabilities)
        finally:
            if listener is not None:
                listener.cancel()
                await asyncio.wait([listener])


class _Link2(BaseLink):
    """Over `Client` of 2.x."""

    def _page(self, method: str) -> Callable[[str | None], Any]:
        def page(cursor: str | None) -> Any:
            return getattr(self._session, method)(cursor=cursor)

        return page

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return plain(await self._session.call_tool(name, dict(arguments)))

    async def read_resource(self, uri: str) -> dict[str, Any]:
        return plain(await self._session.read_resource(uri))


async def _listen(client: Any, signals: Signals) -> None:
    """Since 2026-07-28 changes come on a stream of their own."""
    try:
        async with client.listen(tools_list_changed=True) as events:
            async for _ in events:
                signals.tools_changed()
    except Exception as error:  # noqa: BLE001 - changes are then not heard of; calls go on
        _log.debug("a server's changes aren't heard of any more: %s", error)
