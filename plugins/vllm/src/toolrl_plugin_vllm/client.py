"""Asks a server: JSON there and back, with errors that say what was asked and what came."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from toolrl.errors import EngineError

_SHOWN = 300


class Client:
    """One server. `open` and `close` belong to one event loop."""

    def __init__(self, url: str, *, api_key: str | None, timeout_seconds: float) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout = timeout_seconds
        self._session: aiohttp.ClientSession | None = None

    def open(self) -> None:
        """Must run in the event loop."""
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            # As many requests as there are episodes: the server makes a batch of them. Each has a connection of its
            # own, since a server closes those that are idle while the trainer updates, just when they are used again.
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=self._timeout, sock_connect=30.0),
        )

    async def close(self) -> None:
        """Also fine when never opened."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    async def ask(self, path: str, body: Any = None) -> Any:
        """GET without a body, POST with one; the answer's JSON, None for an empty one. Raises EngineError. Cancelling
        closes the connection, which ends the request at the server."""
        if self._session is None:
            raise EngineError("the engine is not started", hint="Await start() first.")
        address, method = f"{self.url}{path}", "GET" if body is None else "POST"
        try:
            async with self._session.request(method, address, json=body, allow_redirects=False) as response:
                said = await response.read()
        except TimeoutError:
            raise EngineError(
                f"{address} gave no answer in {self._timeout:g} seconds", hint="Raise engine.options.timeout_seconds."
            ) from None
        except aiohttp.ClientError as error:
            raise EngineError(
                f"{address} can't be asked: {type(error).__name__}: {error}", hint="Is the server running?"
            ) from error
        if response.status != 200:
            raise EngineError(f"{address} answered {response.status}: {_excerpt(said)}")
        if not said.strip():
            return None
        try:
            return json.loads(said)
        except ValueError as error:
            raise EngineError(f"{address} answered with what is no JSON: {_excerpt(said)}") from error


def _excerpt(said: bytes) -> str:
    text = " ".join(said[: 4 * _SHOWN].decode("utf-8", "replace").split())
    return text[:_SHOWN] or "nothing"
