"""Long answers, over each transport: a call reads that its answer is too long, and no other call fails with it."""

from __future__ import annotations

import asyncio
import gzip
import http.server
import json
import sys
from typing import Any

import pytest

from toolrl.errors import ToolError, ToolsetError
from toolrl.types import ToolCall
from toolrl_plugin_mcp.contents import MAX_CHARS

LIMIT = 3 * 2**20
TOO_LONG = "too long.* more than 3145728 bytes.* max_message_bytes"


async def check_long_answers(rig: Any, toolset: Any, big: str = "big") -> None:
    """Answers around the bound, beside a call of another episode that runs all the time."""
    other = asyncio.create_task(rig.call(toolset, "nap", seconds=1.0))
    async with rig.episode(toolset) as session:
        for characters in (1_000_000, 1_100_000):
            text = (await session.call(ToolCall(big, {"characters": characters}))).text
            assert len(text.replace("x", "")) < 50
            assert text.count("x") == MAX_CHARS
            assert ("characters left out" in text) == (characters > MAX_CHARS)
        calls = [session.call(ToolCall(big, {"characters": size})) for size in (5_000_000, 1000, 20_000_000)]
        first, second, third = await asyncio.gather(*calls, return_exceptions=True)
        assert second.text == "x" * 1000
        for error in (first, third):
            assert isinstance(error, ToolError)
            assert "3145728 bytes" in error.message
            assert "max_message_bytes" in error.message
    assert await other == "slept 1.0"
    assert toolset.servers["raw"].connections[0].restarts == 0


async def test_long_answers_over_each_transport(rig: Any, toy: Any) -> None:
    server, _ = toy
    async with rig.started(rig.options(server=server, max_message_bytes=LIMIT)) as toolset:
        await check_long_answers(rig, toolset)
        assert await rig.call(toolset, "numbers", count=5000) == "\n\n".join(map(str, range(5000)))
        with pytest.raises(ToolError, match=TOO_LONG):
            await rig.call(toolset, "numbers", count=200_000)


@pytest.mark.parametrize("modes", [[], ["late"]])
async def test_a_long_answer_on_stdio_is_told_to_its_own_call(rig: Any, modes: list[str]) -> None:
    async with rig.started(rig.options(*modes, max_message_bytes=2**16)) as toolset:
        slow = asyncio.create_task(rig.call(toolset, "slow", seconds=0.5))
        sizes = [1000, 10**6, 2000, 10**7]
        texts = await asyncio.gather(
            *(rig.call(toolset, "big", characters=size) for size in sizes), return_exceptions=True
        )
        assert [len(text) if isinstance(text, str) else "65536" in str(text) for text in texts] == [
            1000,
            True,
            2000,
            True,
        ]
        assert await rig.call(toolset, "flood", characters=200_000) == '{"characters": 200000}'
        assert await slow == '{"seconds": 0.5}'
        assert toolset.servers["raw"].connections[0].restarts == 0


async def test_a_long_list_of_tools_is_told_as_such(rig: Any) -> None:
    toolset = rig.toolset(rig.options("wide", max_message_bytes=2**16))
    with pytest.raises(ToolsetError, match="MCP server 'raw' didn't start: .*65536 bytes.*max_message_bytes") as caught:
        await toolset.start()
    assert "raise `max_message_bytes`" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("arguments", "problem"), [({"n": "seven"}, r"output schema: \$.n: 'seven' is not"), ({}, "no structured content")]
)
async def test_structured_content_that_doesnt_fit(rig: Any, arguments: dict[str, Any], problem: str) -> None:
    async with rig.started(rig.options()) as toolset:
        with pytest.raises(ToolError, match=problem):
            await rig.call(toolset, "misfit", **arguments)
        assert await rig.call(toolset, "misfit", n=7) == "7"


class Streaming(http.server.BaseHTTPRequestHandler):
    """A server of 2025: streamable HTTP whose answers to calls are events, or JSON. The path says how they come."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if "id" not in message:
            self._send(202, "text/plain", b"")
            return
        body = {"jsonrpc": "2.0", "id": message["id"], **_answer(message)}
        if "late" in self.path:
            body = {key: body[key] for key in sorted(body, reverse=True)}
        data = json.dumps(body).encode()
        if message["method"] != "tools/call" or "json" in self.path:
            self._send(200, "application/json", data)
            return
        end = b"\r\n" if "crlf" in self.path else b"\n"
        told = b'{"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "%b"}}' % (b"y" * (LIMIT + 1))
        lines = [
            b"event: message",
            b"data: " + told,
            b"",
            b": ping",
            b"",
            b"id: 1",
            b"event: message",
            b"data: " + data,
        ]
        self._send(200, "text/event-stream", end.join([*lines, b"", b""]))

    def do_GET(self) -> None:
        self._send(405, "text/plain", b"")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        if "gzip" in self.path:
            body = gzip.compress(body, 1)
        self.send_response(status)
        self.send_header("content-type", kind)
        if "gzip" in self.path:
            self.send_header("content-encoding", "gzip")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:
            self.close_connection = True  # The client has read enough.

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def _answer(message: dict[str, Any]) -> dict[str, Any]:
    if message["method"] == "initialize":
        info = {"name": "streaming", "version": "1"}
        return {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}}
    if message["method"] == "tools/list":
        names = ("big", "nap")
        return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}}
    if message["method"] != "tools/call":
        return {"error": {"code": -32601, "message": "no such method"}}
    arguments = message["params"]["arguments"]
    text = "x" * arguments["characters"] if "characters" in arguments else f"slept {arguments['seconds']}"
    return {"result": {"content": [{"type": "text", "text": text}]}}


@pytest.mark.parametrize("path", ["/", "/late", "/crlf", "/gzip", "/json", "/json/late", "/json/gzip"])
async def test_long_answers_of_an_older_server(rig: Any, answering: Any, path: str) -> None:
    """Its answers are events even over streamable HTTP, which the SDK bounds by itself at 1 MiB."""
    with answering(Streaming) as url:
        options = rig.options(server={"url": url + path, "type": "streamable-http"}, max_message_bytes=LIMIT)
        async with rig.started(options) as toolset:
            await check_long_answers(rig, toolset)


async def test_the_bound_is_the_same_without_a_setting(rig: Any) -> None:
    options = rig.options(server={"command": sys.executable, "args": [rig.raw]})
    async with rig.started(options) as toolset:
        assert "characters left out" in await rig.call(toolset, "big", characters=15_000_000)
        with pytest.raises(ToolError, match="more than 16777216 bytes"):
            await rig.call(toolset, "big", characters=17_000_000)
