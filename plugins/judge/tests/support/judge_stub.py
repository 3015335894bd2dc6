"""A judge that answers as a test says, and what it was asked."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from toolrl_testing.http_stub import Answers, HttpReply, HttpStub, http_stub

VERDICT = '{"reasons": "Good.", "score": 8}'


def reply(content: Any = VERDICT, *, finish: str = "stop", **fields: Any) -> HttpReply:
    """A chat completion; with another status than 200 a refusal that says this."""
    if fields.get("status", 200) != 200:
        return HttpReply({"error": {"message": str(content), "code": "because"}}, **fields)
    message = {"role": "assistant", "content": content}
    return HttpReply({"choices": [{"index": 0, "message": message, "finish_reason": finish}]}, **fields)


def held(gate: threading.Event) -> Answers:
    """Answers once the gate is open."""

    def answer(_: dict[str, Any]) -> HttpReply:
        gate.wait(60)
        return reply()

    return answer


@contextmanager
def judge_server(answer: Answers | HttpReply | None = None) -> Iterator[HttpStub]:
    """A server on a port of its own, with the API below `/v1`."""
    given = answer if answer is not None else reply()
    with http_stub(given if callable(given) else lambda _: given) as stub:
        stub.url += "/v1"
        yield stub


def questions(stub: HttpStub) -> list[str]:
    """The last message of each request."""
    return [request["messages"][-1]["content"] for request in stub.requests]


def material(question: str, name: str) -> str:
    """What stands between a field's tags in a question."""
    match = re.search(rf"<{name}-([0-9a-f]+)>\n(.*)\n</{name}-\1>", question, re.DOTALL)
    assert match is not None, question
    return match[2]
