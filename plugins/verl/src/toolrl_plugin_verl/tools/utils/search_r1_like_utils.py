"""Stand-in for verl's `verl.tools.utils.search_r1_like_utils`: asks a retrieval server of the kind of Search-R1.

Requests are made with the standard library. They block, so call them from a thread.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import nullcontext
from typing import Any

DEFAULT_TIMEOUT = 30.0
ATTEMPTS = 5
FIRST_DELAY = 0.5
"""Seconds before the second attempt; each further one waits twice as long."""
MAX_BYTES = 64 << 20
"""Of an answer."""
_PASSING = frozenset((429, 500, 502, 503, 504))


def call_search_api(
    retrieval_service_url: str,
    query_list: list[str],
    topk: int = 3,
    return_scores: bool = True,
    timeout: float = DEFAULT_TIMEOUT,
) -> tuple[dict[str, Any] | None, str | None]:
    """The server's answer, or None and what went wrong. A busy or unreachable server is asked again."""
    if urllib.parse.urlsplit(retrieval_service_url).scheme not in ("http", "https"):
        return None, f"{retrieval_service_url!r} is no http address"
    body = json.dumps({"queries": query_list, "topk": topk, "return_scores": return_scores}).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    request = urllib.request.Request(retrieval_service_url, body, headers)
    problem = "no attempt was made"
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(FIRST_DELAY * 2 ** (attempt - 1))
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                answer = json.loads(response.read(MAX_BYTES))
        except urllib.error.HTTPError as error:
            problem = f"the server answered {error.code}"
            error.close()
            if error.code not in _PASSING:
                break
        except (OSError, http.client.HTTPException) as error:
            problem = f"the server can't be reached: {error}"
        except (ValueError, RecursionError) as error:
            return None, f"the server's answer isn't JSON: {error}"
        else:
            return (answer, None) if isinstance(answer, dict) else (None, "the server's answer is no JSON object")
    return None, problem


def perform_single_search_batch(
    retrieval_service_url: str,
    query_list: list[str],
    topk: int = 3,
    concurrent_semaphore: Any = None,
    timeout: float = DEFAULT_TIMEOUT,
) -> tuple[str, dict[str, Any]]:
    """The passages for all queries as `{"result": text}`, and what happened: `status`, `total_results` and so on."""
    with concurrent_semaphore or nullcontext():
        answer, problem = call_search_api(retrieval_service_url, query_list, topk, True, timeout)
    results = (answer or {}).get("result") or []
    facts: dict[str, Any] = {
        "query_count": len(query_list),
        "queries": query_list,
        "api_request_error": problem,
        "api_response": answer,
        "status": "api_error" if answer is None else "success" if results else "no_results",
        "total_results": sum(map(len, results)),
        "formatted_result": None,
    }
    if results:
        facts["formatted_result"] = text = "\n---\n".join(_passages(found) for found in results)
    else:
        text = f"Search error: {problem}" if problem else "No search results found."
    return json.dumps({"result": text}, ensure_ascii=False), facts


def _passages(found: list[Any]) -> str:
    shown = []
    for number, item in enumerate(found, 1):
        document = item.get("document", item)
        title, _, text = document["contents"].partition("\n")
        shown.append(f"Doc {number} (Title: {title})\n{text}")
    return "\n\n".join(shown).strip()
