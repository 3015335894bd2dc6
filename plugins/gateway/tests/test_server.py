"""Connections that break in the middle, and what a request costs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

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
            reader, writer = await send(gateway, session.reward_key, body, "/v1/reward")
            assert await status(reader) == 400
            writer.close()
        reader, writer = await send(gateway, session.key, b"plain", more="Content-Encoding: gzip\r\n")
        assert await status(reader) == 400
        writer.close()
    assert session.score is None


async def test_the_reward_is_set_once_and_by_its_own_key(rig: Any) -> None:
    """The model's key is in the environment of what an agent runs for the model."""
    statuses = []
    async with rig.playing(rig.model([])) as (gateway, session), aiohttp.ClientSession() as http:
        asked = [(session.key, 9), ("x", 9), (session.reward_key, 0.5), (session.reward_key, 9), (session.key, 9)]
        for key, reward in asked:
            headers = {"Authorization": f"Bearer {key}"}
            async with http.post(f"{gateway.url}/v1/reward", json={"reward": reward}, headers=headers) as response:
                statuses.append((response.status, "error" in await response.json()))
        reader, writer = await send(gateway, session.reward_key, json.dumps(HELLO).encode())
        assert await status(reader) == 401
        writer.close()
    assert statuses == [(403, True), (401, True), (200, False), (409, True), (403, True)]
    assert session.score.value == 0.5


@pytest.mark.parametrize(
    ("method", "path", "form"),
    [
        ("POST", "/v1/completions", "openai"),
        ("POST", "/v1/embeddings", "openai"),
        ("GET", "/v1/responses/resp_1", "openai"),
        ("GET", "/v1/chat/completions", "openai"),
        ("GET", "/", "openai"),
        ("POST", "/v1/messages/batches", "anthropic"),
        ("DELETE", "/v1/v1/messages", "anthropic"),
    ],
)
async def test_other_routes_are_refused_in_the_form_of_the_api(rig: Any, method: str, path: str, form: str) -> None:
    async with rig.playing(rig.model([])) as (gateway, session), aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {session.key}"}
        async with http.request(method, gateway.url + path, json={}, headers=headers) as response:
            body = await response.json()
    assert (response.status, response.headers["x-should-retry"]) == (404, "false")
    assert f"{method} {path}" in body["error"]["message"]
    assert (body["error"]["type"] == "not_found_error") == (form == "anthropic")
    assert session.counts["refused"] == 1


async def test_models_are_there_one_by_one_and_tokens_are_counted(rig: Any) -> None:
    async with rig.playing(rig.model([])) as (gateway, session), aiohttp.ClientSession() as http:
        headers = {"Authorization": f"Bearer {session.key}"}
        async with http.get(f"{gateway.url}/v1/models/agent", headers=headers) as response:
            assert (await response.json())["id"] == "agent"
        body = {"model": "agent", "input": "Hello"}
        async with http.post(f"{gateway.url}/v1/responses/input_tokens", json=body, headers=headers) as response:
            assert await response.json() == {"object": "response.input_tokens", "input_tokens": 100}
        async with http.post(f"{gateway.url}/v1/messages/count_tokens", json={}, headers=headers) as response:
            assert (response.status, (await response.json())["type"]) == (400, "error")
    assert session.refusal is None


@pytest.mark.parametrize("half", [b"", b"POST /v1/mess", b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nx-api-key: "])
async def test_a_connection_that_never_sends_its_headers_is_closed(
    rig: Any, monkeypatch: pytest.MonkeyPatch, half: bytes
) -> None:
    """Also after another request, and if a byte comes now and then."""
    monkeypatch.setattr("toolrl_plugin_gateway.server.IDLE_SECONDS", 0.5)
    async with rig.playing(rig.model(["Hello"] * 9)) as (gateway, session):
        host, port = gateway.url.removeprefix("http://").split(":")
        first = await asyncio.open_connection(host, int(port))
        second = await send(gateway, session.key, json.dumps(HELLO).encode())
        assert await status(second[0]) == 200
        for reader, writer in (first, second):
            writer.write(half)

            async def drip(writer: Any = writer) -> None:
                while half and not writer.is_closing():
                    await asyncio.sleep(0.2)
                    writer.write(b"x")

            dripping = asyncio.create_task(drip())
            async with asyncio.timeout(20):
                with __import__("contextlib").suppress(ConnectionError):
                    await reader.read()
            dripping.cancel()
            writer.close()


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "messages/count_tokens", "reward"])
async def test_a_body_that_never_arrives_is_refused(rig: Any, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr("toolrl_plugin_gateway.server.BODY_SECONDS", 0.5)
    async with rig.playing(rig.model(["Hello"])) as (gateway, session):
        host, port = gateway.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        key = session.reward_key if path == "reward" else session.key
        writer.write(
            f"POST /v1/{path} HTTP/1.1\r\nHost: x\r\nx-api-key: {key}\r\nContent-Length: 99\r\n\r\n{{".encode()
        )
        async with asyncio.timeout(20):
            assert await status(reader) == 408
        writer.close()
