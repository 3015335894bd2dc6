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
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError

from toolrl_common.http_server import HttpServer, RefusalError
from toolrl_plugin_search.options import MAX_TOPK
from toolrl_plugin_search.passages import Hit, Index, sound
from toolrl_plugin_search.retrievers import EmbeddedRetriever

GRACE_SECONDS = 10.0
"""How long requests may go on when the server stops."""


class RetrieveRequest(BaseModel, strict=True):
    """The body of a request."""

    queries: list[Annotated[str, AfterValidator(sound)]]
    topk: Annotated[int, BeforeValidator(lambda given: given or 0), Field(ge=0, le=MAX_TOPK)] = 0
    """0, or null, for the server's own."""
    return_scores: bool | None = None


class RetrievalServer(HttpServer):
    """`async with RetrievalServer(index, port=8000) as server:` serves at `server.url`."""

    def __init__(
        self,
        index: Index,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        topk: int = 3,
        workers: int = 1,
        max_batch: int = 64,
        queue: int = 8192,
        max_request_mb: int = 16,
    ) -> None:
        """`port` 0 takes one that is free. `topk` is that of a request that names none, `workers` how many batches of
        `max_batch` queries are searched at once, `queue` how many queries may be under way besides one request's."""
        self._retriever = EmbeddedRetriever(lambda: index, max_batch=max_batch, at_once=workers)
        super().__init__(
            host,
            port,
            {("POST", "/retrieve"): self._retrieve, ("GET", "/health"): self._health},
            service=self._retriever,
            max_request_mb=max_request_mb,
            grace_seconds=GRACE_SECONDS,
        )
        self.index = index
        self._topk = topk
        self._queue = queue
        self._under_way = 0

    async def _health(self, request: Any) -> Any:
        return {"status": "ok", "kind": self.index.kind, "passages": len(self.index)}

    async def _retrieve(self, request: Any) -> Any:
        asked = read_request(await self.read(request))
        count = len(asked.queries)
        if self._under_way and self._under_way + count > self._queue:
            raise RefusalError.busy("too many queries wait")
        self._under_way += count
        try:
            topk = asked.topk or self._topk
            found = await asyncio.gather(*(self._retriever.search(query, topk) for query in asked.queries))
        finally:
            self._under_way -= count
        return {"result": [_shown(hits, asked) for hits in found]}


def _shown(hits: Sequence[Hit], asked: RetrieveRequest) -> list[Any]:
    if asked.return_scores:
        return [{"document": hit.passage.document(), "score": hit.score} for hit in hits]
    return [hit.passage.document() for hit in hits]


def read_request(raw: bytes) -> RetrieveRequest:
    """The request of a body. Raises RefusalError."""
    try:
        return RetrieveRequest.model_validate(json.loads(raw))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
        raise RefusalError(422, f"`{where}`: {first['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise RefusalError(422, f"no JSON: {error}") from error
