"""Answers of a retrieval server."""

from __future__ import annotations

from typing import Any

from toolrl_testing.http_stub import HttpReply


def found(request: dict[str, Any]) -> HttpReply:
    """`topk` passages for each query, which say what was asked."""

    def hits(query: str) -> list[dict[str, Any]]:
        return [
            {"document": {"id": str(n), "contents": f'"{query}"\nnumber {n}'}, "score": 9.0 - n}
            for n in range(request["topk"])
        ]

    return HttpReply({"result": [hits(query) for query in request["queries"]]})
