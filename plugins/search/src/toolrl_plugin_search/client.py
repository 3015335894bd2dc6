"""The HTTP client of the retrieval API.

async with RetrievalClient("http://127.0.0.1:8000") as client:
    (hits,) = await client.retrieve(["who wrote faust"], topk=3)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from toolrl.errors import ToolError
from toolrl_common.http_client import JsonClient
from toolrl_plugin_search.options import retrieve_url
from toolrl_plugin_search.passages import Hit, Passage


class RetrievalApiError(ToolError):
    """The server's answer is none, or it refuses the request; the same request won't do better."""

    kind: ClassVar[str] = "search_error"


class RetrievalClient(JsonClient):
    """Asks one address. Used inside `async with`, on one event loop."""

    service = "search server"
    hint = "Correct the tool's `url`, or the key in `headers`."
    error = RetrievalApiError

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
        max_response_bytes: int = 64 << 20,
    ) -> None:
        """`timeout` is in seconds, for one request. Raises ValueError for what is no address."""
        super().__init__(retrieve_url(url), headers, max_bytes=max_response_bytes)
        self._timeout = timeout

    async def retrieve(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """The hits of each query. Raises TransientToolError, RetrievalApiError, and ToolsetError for an address, a key
        or a path that can't be right."""
        body = {"queries": list(queries), "topk": topk, "return_scores": True}
        answer = await self.post(body, seconds=self._timeout)
        try:
            return read_result(answer, len(queries))
        except (ValueError, OverflowError) as error:  # a whole number may be too large for a float
            raise self.unreadable(error) from error


def read_result(value: Any, count: int) -> list[list[Hit]]:
    """The hits of an answer to `count` queries. Documents may come without scores, as they do where none are asked for;
    then these are 0. Raises ValueError."""
    result = value.get("result") if isinstance(value, Mapping) else None
    if not isinstance(result, list) or len(result) != count or not all(isinstance(found, list) for found in result):
        raise ValueError(f"`result` has to be a list of {count} lists")
    return [[_hit(item) for item in found] for found in result]


def _hit(item: Any) -> Hit:
    document, score = item, 0.0
    if isinstance(item, Mapping) and "document" in item:
        document, score = item["document"], item.get("score", 0.0)
    if not isinstance(document, Mapping):
        raise ValueError(f"a document is {type(document).__name__}, expected an object")
    contents = document.get("contents")
    if contents is None and isinstance(document.get("text"), str):
        contents = f"{document.get('title', '')}\n{document['text']}"
    if not isinstance(contents, str):
        raise ValueError("a document has no `contents`")
    if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
        raise ValueError(f"a score is {score!r:.40}, expected a number")
    return Hit(Passage(str(document.get("id", "")), contents), float(score))
