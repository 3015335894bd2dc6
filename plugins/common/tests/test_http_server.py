"""The local server of JSON: pages of other sites, refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolrl.errors import ConfigError
from toolrl_common import http_server
from toolrl_common.http_server import HttpServer, RefusalError

aiohttp = pytest.importorskip("aiohttp", reason="the server needs aiohttp")


@asynccontextmanager
async def serving() -> AsyncIterator[HttpServer]:
    """A server that adds numbers."""

    async def add(request: Any) -> Any:
        numbers = json.loads(await server.read(request))
        if not numbers:
            raise RefusalError.busy("nothing to add")
        return sum(numbers)

    async with HttpServer("127.0.0.1", 0, {("POST", "/add"): add}, max_request_mb=1, grace_seconds=10) as server:
        yield server


async def post(url: str, data: bytes = b"[1, 2]", **headers: str) -> tuple[int, Any]:
    sent = {"Content-Type": "application/json", **headers}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/add", data=data, headers=sent) as response:
        return response.status, await response.json()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:1"}, 200),
        ({"Host": "[::1]:1"}, 200),
        ({"Host": "127.0.0.1:1", "Origin": "http://127.0.0.1:1"}, 200),
        ({"Host": "evil.example:1"}, 403),
        ({"Host": "127.0.0.1.evil.example"}, 403),
        ({"Host": "192.168.0.1:1"}, 403),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_a_page_of_another_site_gets_no_answer(headers: dict[str, str], status: int) -> None:
    async with serving() as server:
        assert (await post(server.url, **headers))[0] == status


def test_where_others_reach_the_server_a_name_is_no_mistake() -> None:
    assert http_server.refused("sandbox.internal:8080", None, own=False) is None
    assert http_server.refused("evil.example", "http://evil.example", own=False) is not None


async def test_answers_and_refusals() -> None:
    async with serving() as server:
        assert await post(server.url) == (200, 3)
        assert await post(server.url, b"[]") == (503, {"detail": "nothing to add"})
        assert (await post(server.url, **{"Content-Type": "text/plain"}))[0] == 415
        assert await post(server.url, b" " * (2 << 20)) == (413, {"detail": "the request is larger than 1 MiB"})


async def test_a_port_that_is_taken() -> None:
    async with serving() as server:
        port = int(server.url.rpartition(":")[2])
        with pytest.raises(ConfigError, match="can't listen on"):
            async with HttpServer("127.0.0.1", port, {}, max_request_mb=1, grace_seconds=1):
                pass


@pytest.mark.parametrize("sent", [b"", b"POST /add HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half"])
async def test_a_client_that_sends_no_whole_request_is_dropped(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.5)
    async with serving() as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(sent)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        writer.close()
        assert (await post(server.url))[0] == 200


async def test_a_body_that_does_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "REQUEST_SECONDS", 0.5)
    async with serving() as server:
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /add HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n["
        )
        assert (await asyncio.wait_for(reader.readline(), 30)).startswith(b"HTTP/1.1 408")
        writer.close()
