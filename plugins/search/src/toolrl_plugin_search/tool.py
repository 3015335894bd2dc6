"""The tools `search` and `query_rag`: a query in, passages out."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from toolrl.errors import ArgumentsError
from toolrl.protocols import BuildContext, EpisodeContext, ToolSession, Toolset
from toolrl.tools.traits import ToolTraits
from toolrl.types import Task, ToolCall, ToolResult, ToolSpec
from toolrl_common.http_client import without_secrets
from toolrl_plugin_search.client import RetrievalClient
from toolrl_plugin_search.options import SEARCH_DESCRIPTION, SearchOptions
from toolrl_plugin_search.passages import Hit, sound
from toolrl_plugin_search.retrievers import EmbeddedRetriever, RemoteRetriever, Retriever, open_index

NOTHING = "No passage fits this query."
MAX_QUERY_CHARS = 8192
"""A query is cut to so many characters."""
BATCHES_AT_ONCE = 2
BATCH_WAIT = 0.002
"""Seconds that the first query of a batch waits for those of other episodes."""
_QUERY = {"type": "string", "description": "What to look for."}


def make_search(options: SearchOptions, context: BuildContext) -> SearchToolset:
    """The tool `search`, with one argument for the model, `query`."""
    return SearchToolset("search", {"query": _QUERY}, options, options.format or "text", context.where)


def make_query_rag(options: SearchOptions, context: BuildContext) -> SearchToolset:
    """The tool `query_rag(query, topk)`."""
    topk = {"type": "integer", "description": "How many passages to return.", "default": options.topk}
    arguments = {"query": _QUERY, "topk": topk}
    return SearchToolset("query_rag", arguments, options, options.format or "json", context.where)


class SearchToolset(Toolset, ToolSession):
    """The toolset of one tool, and its session in every episode: nothing is kept from one call to the next. One
    retriever serves all episodes of a process, so that calls of many go together."""

    def __init__(
        self, name: str, arguments: Mapping[str, Any], options: SearchOptions, form: str, where: str = ""
    ) -> None:
        schema = {"type": "object", "properties": arguments, "required": ["query"]}
        self.spec = ToolSpec(name, SEARCH_DESCRIPTION, schema)
        self.options = options
        self._form = form
        self._retriever = make_retriever(options, where)
        # The same query finds the same passages, so answers may be kept, and a lost call may be made again.
        endpoint = f"index {options.index}" if options.url is None else without_secrets(options.url)
        self._traits = ToolTraits(pure=True, idempotent=True, endpoint=endpoint)

    def names(self) -> Sequence[str]:
        return (self.spec.name,)

    def specs(self) -> Sequence[ToolSpec]:
        return (self.spec,)

    def traits(self, name: str) -> ToolTraits:
        return self._traits

    async def start(self) -> None:
        """Open the index, or see that the server answers. Raises DataError, ToolsetError, TransientToolError."""
        await self._retriever.start()

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[SearchToolset]:
        yield self

    async def stop(self) -> None:
        await self._retriever.stop()

    async def call(self, call: ToolCall) -> ToolResult:
        """Raises ArgumentsError, and what the retriever raises."""
        query, topk = self._query(call.arguments.get("query")), self._topk(call.arguments.get("topk"))
        hits = await self._retriever.search(query, topk)
        most = self.options.max_passage_chars
        text = hits_json(hits, most) if self._form == "json" else hits_text(hits, most) or NOTHING
        return ToolResult(text, metrics={"passages": float(len(hits))})

    def _query(self, given: Any) -> str:
        if not isinstance(given, str) or not given.strip():
            raise ArgumentsError(f"Bad arguments for the tool {self.spec.name!r}: 'query': expected a text.")
        return sound(given.strip()[:MAX_QUERY_CHARS])

    def _topk(self, given: Any) -> int:
        if given is None:
            return self.options.topk
        if not isinstance(given, int) or given < 1:
            raise ArgumentsError(f"Bad arguments for the tool {self.spec.name!r}: 'topk': expected a number from 1 on.")
        return min(given, self.options.max_topk)


def make_retriever(options: SearchOptions, where: str = "") -> Retriever:
    """The retriever of a tool's options."""
    gathering: dict[str, Any] = {"max_batch": options.max_batch, "at_once": BATCHES_AT_ONCE, "wait": BATCH_WAIT}
    if options.url is None:
        folder = Path(str(options.index))
        opener = partial(open_index, folder, encoder=options.encoder, device=options.device, where=where or None)
        return EmbeddedRetriever(opener, **gathering)
    client = RetrievalClient(options.url, headers=options.headers, timeout=options.request_timeout)
    return RemoteRetriever(client, patience=options.patience, **gathering)


def hits_text(hits: Sequence[Hit], max_chars: int | None = None) -> str:
    """Passages as Search-R1 shows them to the model."""
    lines = []
    for number, hit in enumerate(hits, 1):
        title, _, text = cut(hit.passage.contents, max_chars).partition("\n")
        lines.append(f"Doc {number}(Title: {title}) {text}\n")
    return "".join(lines)


def hits_json(hits: Sequence[Hit], max_chars: int | None = None) -> str:
    """Passages with their scores, as one query's part of the API's answer."""
    found = []
    for hit in hits:
        document = {"id": hit.passage.id, "contents": cut(hit.passage.contents, max_chars)}
        found.append({"document": document, "score": round(hit.score, 4)})
    return json.dumps({"result": [found]}, ensure_ascii=False)


def cut(text: str, max_chars: int | None) -> str:
    """The beginning of a text that is too long, with a mark at its end."""
    return text if max_chars is None or len(text) <= max_chars else text[:max_chars] + " …"
