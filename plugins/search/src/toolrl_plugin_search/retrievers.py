"""Where a tool's passages come from: an index in this process, or a retrieval server. Both answer in batches."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from toolrl.errors import ToolError
from toolrl.tools.threads import POOL
from toolrl_common.http_client import patiently
from toolrl_plugin_search.batch import Batcher
from toolrl_plugin_search.client import RetrievalApiError, RetrievalClient
from toolrl_plugin_search.index import Index
from toolrl_plugin_search.passages import Hit

Asked = tuple[str, int]
"""A query, and how many passages are wanted."""


class Retriever(ABC):
    """Answers one query at a time, many at once."""

    def __init__(self, *, max_batch: int, at_once: int, wait: float = 0.0) -> None:
        self._batcher: Batcher[Asked, list[Hit]] = Batcher(self._run, max_batch=max_batch, at_once=at_once, wait=wait)

    @abstractmethod
    async def start(self) -> None:
        """Get ready. Raises what hinders it."""

    async def search(self, query: str, topk: int) -> list[Hit]:
        """At most `topk` passages, the best first."""
        return await self._batcher.ask((query, topk))

    async def stop(self) -> None:
        """End what runs, and cancel what waits."""
        await self._batcher.stop()

    @abstractmethod
    async def _find(self, queries: list[str], topk: int) -> list[list[Hit]]: ...

    async def _run(self, batch: Sequence[Asked]) -> list[list[Hit] | Exception]:
        found = await self._find([query for query, _ in batch], max(topk for _, topk in batch))
        return [hits[:topk] for hits, (_, topk) in zip(found, batch, strict=True)]


class EmbeddedRetriever(Retriever):
    """Searches an index in threads of this process."""

    def __init__(self, opener: Callable[[], Index], *, max_batch: int, at_once: int, wait: float = 0.0) -> None:
        super().__init__(max_batch=max_batch, at_once=at_once, wait=wait)
        self._opener = opener
        self._index: Index | None = None

    async def start(self) -> None:
        """Open the index. Raises DataError."""
        if self._index is None:
            self._index = await POOL.submit(self._opener)

    async def stop(self) -> None:
        await super().stop()
        # A search that was given up runs on in its thread and reads the files; they go with the last of these.
        self._index = None

    async def _find(self, queries: list[str], topk: int) -> list[list[Hit]]:
        if self._index is None:
            raise RuntimeError("a search before start(), or after stop()")
        return await POOL.submit(self._index.search, queries, topk)


class RemoteRetriever(Retriever):
    """Asks a retrieval server, several queries in one request."""

    def __init__(
        self, client: RetrievalClient, *, max_batch: int, at_once: int, wait: float, patience: float | None = None
    ) -> None:
        """`patience` is how many seconds the server may take to come up; None: it isn't asked at the start."""
        super().__init__(max_batch=max_batch, at_once=at_once, wait=wait)
        self._client = client
        self._patience = patience

    async def start(self) -> None:
        """Connect, and see that the server answers. Raises ToolsetError and TransientToolError."""
        await self._client.__aenter__()
        if self._patience is not None:
            await patiently(lambda: self._client.retrieve(["test"], 1), self._patience)

    async def stop(self) -> None:
        try:
            await super().stop()
        finally:
            await self._client.__aexit__()

    async def _find(self, queries: list[str], topk: int) -> list[list[Hit]]:
        return await self._client.retrieve(queries, topk)

    async def _run(self, batch: Sequence[Asked]) -> list[list[Hit] | Exception]:
        try:
            return await super()._run(batch)
        except RetrievalApiError as error:
            if len(batch) == 1:
                return [error]
        # One query may be what the server refused; the others of its batch have nothing to do with it.
        return list(await asyncio.gather(*(self._alone(*one) for one in batch)))

    async def _alone(self, query: str, topk: int) -> list[Hit] | Exception:
        try:
            return (await self._find([query], topk))[0]
        except ToolError as error:
            return error
