"""Where a tool's passages come from: an index in this process, or a retrieval server. Both answer in batches."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from toolrl.errors import DataError
from toolrl.tools.threads import POOL
from toolrl_common.http_client import patiently
from toolrl_plugin_search.client import RetrievalApiError, RetrievalClient
from toolrl_plugin_search.folder import read_manifest
from toolrl_plugin_search.passages import Hit, Index

Asked = tuple[str, int, asyncio.Future[list[Hit]]]
"""A query, how many passages are wanted, and where they go."""


class Retriever(ABC):
    """Answers one query at a time, many at once, on one event loop. Queries that arrive while the loop goes round once,
    or while all places for batches are taken, go together. A query whose caller was cancelled before its batch begins
    isn't in it; one that a server refuses doesn't take the others of its batch along."""

    def __init__(self, *, max_batch: int, at_once: int, wait: float = 0.0) -> None:
        """`wait` is how many seconds the first query of a batch waits for others."""
        self._max_batch = max_batch
        self._at_once = at_once
        self._wait = wait
        self._waiting: deque[Asked] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def start(self) -> None:
        """Get ready. Raises what hinders it."""

    async def search(self, query: str, topk: int) -> list[Hit]:
        """At most `topk` passages, the best first."""
        future: asyncio.Future[list[Hit]] = asyncio.get_running_loop().create_future()
        self._waiting.append((query, topk, future))
        if len(self._workers) < self._at_once:
            self._workers.add(asyncio.create_task(self._work()))
        return await future

    async def stop(self) -> None:
        """End what runs, and cancel what waits."""
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        self._workers.clear()
        while self._waiting:
            self._waiting.popleft()[2].cancel()

    @abstractmethod
    async def _find(self, queries: list[str], topk: int) -> list[list[Hit]]: ...

    async def _work(self) -> None:
        """Answers batches until no query is left."""
        try:
            await asyncio.sleep(self._wait)
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._max_batch))]
                try:
                    if left := [asked for asked in batch if not asked[2].done()]:
                        await self._answer(left)
                finally:
                    for asked in batch:
                        asked[2].cancel()  # Where it has no answer.
        finally:
            self._workers.discard(asyncio.current_task())

    async def _answer(self, batch: Sequence[Asked]) -> None:
        try:
            found = await self._find([query for query, _, _ in batch], max(topk for _, topk, _ in batch))
            answers = list(zip(found, batch, strict=True))
        except Exception as error:  # noqa: BLE001 - it belongs to the callers
            if isinstance(error, RetrievalApiError) and len(batch) > 1:
                await asyncio.gather(*(self._answer([one]) for one in batch))
                return
            for _, _, future in batch:
                if not future.done():
                    future.set_exception(error)
        else:
            for hits, (_, topk, future) in answers:
                if not future.done():
                    future.set_result(hits[:topk])


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


def open_index(
    folder: Path, *, encoder: str | None = None, device: str | None = None, where: str | None = None
) -> Index:
    """The index in a folder. `encoder` and `device` are for a dense one: the folder of its model, if it isn't where it
    was when the index was made, and cpu (by default) or cuda. Raises DataError, ConfigError, PluginError."""
    folder = folder.expanduser()
    kind = read_manifest(folder, where).get("kind")
    if kind == "bm25":
        from toolrl_plugin_search.bm25 import Bm25Index

        return Bm25Index(folder)
    if kind == "dense":
        from toolrl_plugin_search.dense import DenseIndex

        return DenseIndex(folder, encoder=encoder, device=device or "cpu")
    raise DataError(f"{folder} is an index of an unknown kind, {kind!r}", where=where, hint="Make it anew.")
