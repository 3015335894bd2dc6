"""The client of JSON services against a real HTTP server: errors, bounds, connections."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("aiohttp", reason="the client needs aiohttp")

from toolrl.errors import ToolError, ToolsetError, TransientToolError
from toolrl_common.http_client import JsonClient, refusal_text, service_url, without_secrets
from toolrl_testing.http_stub import HttpReply, HttpStub, http_stub


class FailedError(ToolError):
    """What the same request would raise again."""


class Client(JsonClient):
    service = "service"
    hint = "Correct `url`."
    error = FailedError


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    """A server of this test alone."""
    with http_stub(lambda request: HttpReply({"found": request.get("asked")})) as made:
        yield made


def ask(url: str, seconds: float | None = 60.0, **options: Any) -> Any:
    async def run() -> Any:
        async with Client(url, **options) as client:
            return await client.post({"asked": 1}, seconds=seconds)

    return asyncio.run(run())


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_what_passes_is_transient(stub: HttpStub, status: int) -> None:
    stub.script(HttpReply(b"busy", status, {"Retry-After": "3"}))
    with pytest.raises(TransientToolError, match=f"HTTP {status}") as error:
        ask(stub.url)
    assert error.value.retry_after == 3.0


@pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 405])
def test_a_wrong_address_or_key_is_no_text_for_the_model(stub: HttpStub, status: int) -> None:
    stub.script(HttpReply({"message": "go away"}, status, {"Location": "/other"} if status < 400 else {}))
    with pytest.raises(ToolsetError, match="go away") as error:
        ask(f"{stub.url}/path?key=hunter2")
    assert (error.value.where, error.value.hint) == (f"{stub.url}/path", "Correct `url`.")
    assert len(stub.requests) == 1


@pytest.mark.parametrize("status", [400, 413, 422, 501, 201])
def test_other_statuses_are_final(stub: HttpStub, status: int) -> None:
    stub.script(HttpReply(b"because", status))
    with pytest.raises(FailedError, match=rf"HTTP {status}\): because") as error:
        ask(stub.url)
    assert not error.value.transient


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, gzip.compress(b"{}", mtime=0)])
def test_what_is_no_json_is_said(stub: HttpStub, body: bytes) -> None:
    stub.script(HttpReply(body))
    with pytest.raises(FailedError, match="can't be read"):
        ask(stub.url)


def test_a_large_answer_is_cut_off(stub: HttpStub) -> None:
    stub.script(HttpReply("x" * (2 << 20)))
    with pytest.raises(FailedError, match="larger than 1 MiB"):
        ask(stub.url, max_bytes=1 << 20)
    assert len(ask(stub.url, max_bytes=4 << 20)) == 2 << 20


@pytest.mark.parametrize(
    "reply", [HttpReply(drop=True), HttpReply(b'{"found"', headers={"Content-Length": "100"}, last=True)]
)
def test_a_connection_that_breaks_or_is_none(stub: HttpStub, reply: HttpReply) -> None:
    stub.script(reply)
    for url in (stub.url, "http://127.0.0.1:9"):
        with pytest.raises(TransientToolError, match="can't be reached"):
            ask(url)


def test_no_answer_in_time(stub: HttpStub) -> None:
    gate = threading.Event()
    stub.answer = lambda request: HttpReply(gate.wait(60))
    with pytest.raises(TransientToolError, match=r"no answer within 0\.3 s"):
        ask(stub.url, seconds=0.3)
    gate.set()


async def test_one_connection_serves_requests_until_the_last_user_leaves(stub: HttpStub) -> None:
    client = Client(stub.url, {"Authorization": "Bearer key"})
    async with client:
        async with client:
            assert await client.post({"asked": 1}, seconds=60) == {"found": 1}
        assert await client.post({"asked": 2}, seconds=60) == {"found": 2}
    assert len(stub.connections) == 1
    assert stub.headers[0]["Authorization"] == "Bearer key"
    assert stub.headers[0]["Content-Type"] == "application/json"
    with pytest.raises(RuntimeError, match="async with"):
        await client.post({}, seconds=60)


@pytest.mark.parametrize(
    ("url", "full"),
    [
        ("http://a:8080", "http://a:8080/run"),
        ("http://a:8080/", "http://a:8080/run"),
        ("https://a/run", "https://a/run"),
        ("https://a/other/run?x=1", "https://a/other/run?x=1"),
    ],
)
def test_the_path_is_added_where_there_is_none(url: str, full: str) -> None:
    assert service_url(url, "/run", "http://a") == full


@pytest.mark.parametrize("url", ["", "a:8080", "ftp://a", "http://", "http://a:port", "http://[::1", "/run"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ValueError, match="expected an address"):
        service_url(url, "/run", "http://a")


def test_an_address_that_is_shown_has_no_secrets() -> None:
    assert without_secrets("https://me:pass@a:8/run?key=x#y") == "https://a:8/run"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"plain", "plain"),
        (b"", "without a word"),
        (b'{"detail": "no"}', "no"),
        (b'{"error": "no"}', "no"),
        (b'{"detail": [7]}', "[7]"),
        (b"\xff", "\ufffd"),
    ],
)
def test_what_a_refusal_says(body: bytes, text: str) -> None:
    assert refusal_text(body) == text
