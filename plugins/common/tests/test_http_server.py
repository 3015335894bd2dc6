"""The local server of JSON: pages of other sites, requests that don't come, too many connections."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from toolrl.errors import ConfigError
from toolrl_common import http_server
from toolrl_common.http_server import HttpServer, RefusalError

aiohttp = pytest.importorskip("aiohttp", reason="the server needs aiohttp")

REQUEST = b"POST /add HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
LIMITED = """
import asyncio, json
from toolrl_common.http_server import HttpServer

async def main():
    async def add(request):
        return sum(json.loads(await server.read(request)))
    server = HttpServer({("POST", "/add"): add}, max_request_mb=1, request_seconds=60, grace_seconds=1)
    await server.start("127.0.0.1", 0)
    print(server.url, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def serving(seconds: float = 60.0) -> AsyncIterator[HttpServer]:
    """A server that adds numbers."""

    async def add(request: Any) -> Any:
        numbers = json.loads(await server.read(request))
        if not numbers:
            raise RefusalError.busy("nothing to add")
        return sum(numbers)

    server = HttpServer({("POST", "/add"): add}, max_request_mb=1, request_seconds=seconds, grace_seconds=10)
    await server.start("127.0.0.1", 0)
    try:
        yield server
    finally:
        await server.stop()


async def post(url: str, data: bytes = b"[1, 2]", **headers: str) -> tuple[int, Any]:
    sent = {"Content-Type": "application/json", **headers}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/add", data=data, headers=sent) as response:
        return response.status, await response.json()


async def connect(server: HttpServer) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


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


async def test_a_body_that_doesnt_come_is_given_up() -> None:
    async with serving(seconds=0.2) as server:
        reader, writer = await connect(server)
        writer.write(REQUEST + b"[")
        assert await asyncio.wait_for(reader.readline(), 60) == b"HTTP/1.1 408 Request Timeout\r\n"
        writer.close()


@pytest.mark.parametrize("sent", [b"", REQUEST[:60]])
async def test_a_connection_whose_request_doesnt_come_is_closed(sent: bytes) -> None:
    async with serving(seconds=0.2) as server:
        reader, writer = await connect(server)
        writer.write(sent)
        with suppress(ConnectionResetError):
            assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()


async def test_many_slow_connections_make_room_for_one_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MOST_WAITING", 6)
    async with serving() as server:
        slow = [await connect(server) for _ in range(40)]
        for _, writer in slow:
            writer.write(REQUEST[:20])
        assert await post(server.url) == (200, 3)
        for _, writer in slow:
            writer.close()


async def test_it_serves_on_after_it_ran_out_of_descriptors() -> None:
    command = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", sys.executable, "-c", LIMITED]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        url = (await process.stdout.readline()).decode().strip()
        opened = [await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2])) for _ in range(200)]
        assert await post(url) == (200, 3)
        for _, writer in opened:
            writer.close()
        assert process.returncode is None
    finally:
        process.kill()
        await process.wait()


async def test_a_port_that_is_taken() -> None:
    async with serving() as server:
        other = HttpServer({}, max_request_mb=1, request_seconds=1, grace_seconds=1)
        with pytest.raises(ConfigError, match="can't listen on"):
            await other.start("127.0.0.1", int(server.url.rpartition(":")[2]))
        await other.stop()
