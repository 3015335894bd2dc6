"""The retrieval server: `POST /retrieve` as Search-R1 has it, and `GET /health`.

    {"queries": ["who wrote faust"], "topk": 3, "return_scores": true}
    → {"result": [[{"document": {"id": "7", "contents": "\\"Faust\\"\\n…"}, "score": 8.1}, …]]}

Without `return_scores` the documents stand there alone; without `topk`, or with 0, it is the server's own. A null is as
if the field weren't there. Queries of requests that arrive together go through the index in one batch, in a thread. So
many queries may wait; requests with more are answered 503 with `Retry-After`, at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from toolrl_common.http_server import HttpServer, RefusalError
from toolrl_plugin_search.options import MAX_TOPK
from toolrl_plugin_search.passages import Hit, Index, sound
from toolrl_plugin_search.retrievers import EmbeddedRetriever


@dataclass(frozen=True, slots=True)
class RetrievalServerSettings:
    """Where the server listens, and what it takes."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 for any that is free."""
    topk: int = 3
    """Of a request that names none."""
    workers: int = 1
    """Batches that are searched at once, each in a thread."""
    max_batch: int = 64
    """Queries of a batch."""
    queue: int = 8192
    """Queries that are under way at most, besides those of one request."""
    max_request_mb: int = 16
    grace_seconds: float = 10.0
    """How long requests that are under way may go on after the server stops."""


class RetrieveRequest(BaseModel, strict=True):
    """The body of a request."""

    queries: list[Annotated[str, AfterValidator(sound)]]
    topk: Annotated[int, BeforeValidator(lambda given: given or 0), Field(ge=0, le=MAX_TOPK)] = 0
    """0, or null, for the server's own."""
    return_scores: bool | None = None


class RetrievalServer:
    """`async with RetrievalServer(index, settings) as server:` serves at `server.url`."""

    def __init__(self, index: Index, settings: RetrievalServerSettings | None = None) -> None:
        self.index = index
        self.settings = settings or RetrievalServerSettings()
        self._retriever = EmbeddedRetriever(
            lambda: index, max_batch=self.settings.max_batch, at_once=self.settings.workers
        )
        self._under_way = 0
        self._http = HttpServer(
            {("POST", "/retrieve"): self._retrieve, ("GET", "/health"): self._health},
            max_request_mb=self.settings.max_request_mb,
            grace_seconds=self.settings.grace_seconds,
        )

    @property
    def url(self) -> str:
        """The address, once it listens."""
        return self._http.url

    async def __aenter__(self) -> RetrievalServer:
        """Listen. Raises ConfigError."""
        try:
            await self._retriever.start()
            await self._http.start(self.settings.host, self.settings.port)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        """Take no more requests, and let those that are under way end."""
        try:
            await self._http.stop()
        finally:
            await self._retriever.stop()

    async def _health(self, request: Any) -> Any:
        return {"status": "ok", "kind": self.index.kind, "passages": len(self.index)}

    async def _retrieve(self, request: Any) -> Any:
        asked = read_request(await self._http.read(request), self.settings)
        count = len(asked.queries)
        if self._under_way and self._under_way + count > self.settings.queue:
            raise RefusalError.busy("too many queries wait")
        self._under_way += count
        try:
            found = await asyncio.gather(*(self._retriever.search(query, asked.topk) for query in asked.queries))
        finally:
            self._under_way -= count
        return {"result": [_shown(hits, asked) for hits in found]}


def _shown(hits: Sequence[Hit], asked: RetrieveRequest) -> list[Any]:
    if asked.return_scores:
        return [{"document": hit.passage.document(), "score": hit.score} for hit in hits]
    return [hit.passage.document() for hit in hits]


def read_request(raw: bytes, settings: RetrievalServerSettings) -> RetrieveRequest:
    """The request of a body. Raises RefusalError."""
    try:
        asked = RetrieveRequest.model_validate(json.loads(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RefusalError(422, f"`{where}`: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise RefusalError(422, f"no JSON: {error}") from error
    return asked.model_copy(update={"topk": asked.topk or settings.topk})
