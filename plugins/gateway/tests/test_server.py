"""Connections that break in the middle, and what a request costs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

HELLO = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}


async def send(gateway: Any, key: str, body: bytes, path: str = "/v1/chat/completions", more: str = "") -> Any:
    """A raw connection with one request on it."""
    host, port = gateway.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nx-api-key: {key}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def status(reader: asyncio.StreamReader) -> int:
    return int((await reader.readline()).split()[1])


async def test_a_stream_that_is_read_half_leaves_nothing(rig: Any) -> None:
    """The client's connection stays open, or is reset, or the client reads no byte of an answer of some megabytes."""
    large = rig.model(lambda messages: "x" * (16 << 20))
    late = rig.model(lambda messages: "late", seconds=60)
    body = json.dumps({**HELLO, "stream": True}).encode()
    async with rig.listening() as gateway:
        async with rig.session(gateway, large) as session:
            _, writer = await send(gateway, session.key, body)
            await rig.until(lambda: session.handlers)
            await asyncio.sleep(0.1)
            assert session.handlers, "it waits for its client"
        assert not session.handlers
        async with rig.session(gateway, late) as session:
            _, reset = await send(gateway, session.key, body)
            await rig.until(lambda: session.handlers)
            reset.transport.abort()
            await rig.until(lambda: late.cancelled)
            await rig.until(lambda: not session.handlers)
        writer.close()


async def test_bodies_that_are_no_request(rig: Any) -> None:
    async with rig.playing(rig.model([])) as (gateway, session):
        for body in (b"{", b"[1]", b"[" * 10**5, b'{"messages": [1]}'):
            reader, writer = await send(gateway, session.key, body)
            assert await status(reader) == 400
            writer.close()
        for body in (b'{"reward": "much"}', b'{"reward": NaN}', b'{"reward": 1' + b"0" * 400 + b"}", b"{}"):
            reader, writer = await send(gateway, session.key, body, "/v1/reward")
            assert await status(reader) == 400
            writer.close()
        reader, writer = await send(gateway, session.key, b"plain", more="Content-Encoding: gzip\r\n")
        assert await status(reader) == 400
        writer.close()
    assert session.score is None
