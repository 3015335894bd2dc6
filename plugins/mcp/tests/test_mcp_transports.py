"""A server written with the SDK, over stdio, streamable HTTP and SSE: the same over each."""

from __future__ import annotations

import asyncio
import http.server
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ToolError, ToolsetError
from toolrl.types import ToolCall

Toy = tuple[dict[str, Any], Any]


async def test_a_session(rig: Any, toy: Toy) -> None:
    """Everything that needs no restart, in one server: its start takes longer than all of it."""
    server, _ = toy

    async def answers(toolset: Any) -> None:
        assert await rig.call(toolset, "raw-add", a=2, b=40) == "42"
        assert await rig.call(toolset, "add", a=2, b=40) == "42"
        assert await rig.call(toolset, "echo", text="ä\u2028🙂\n") == "ä\u2028🙂\n"
        assert '"celsius": 21' in await rig.call(toolset, "weather", city="Oslo")
        assert len(await rig.call(toolset, "big", characters=500_000)) == 500_000

    async def errors(toolset: Any) -> None:
        with pytest.raises(ToolError, match="Error executing tool fail"):
            await rig.call(toolset, "fail")
        with pytest.raises(ToolError):
            await rig.call(toolset, "add", a="no number", b=1)
        with pytest.raises(ToolError, match="There is no tool 'none'. Available tools: raw-add, "):
            await rig.call(toolset, "none")

    async def several_contents(toolset: Any) -> None:
        kinds = ["text", "image", "audio", "resource", "blob", "link"]
        assert await rig.call(toolset, "contents", kinds=kinds) == (
            "words\n\n[image, image/png, 73 bytes]\n\n[audio, audio/wav, 4 bytes]\n\ninside\n\n"
            "[resource toy://b, application/zip, 4 bytes]\n\n[link to a resource: d, toy://d, more]"
        )

    async def parallel_calls(toolset: Any) -> None:
        async with rig.episode(toolset) as session:
            calls = [ToolCall("raw-nap", {"seconds": 0.3 - number / 100}) for number in range(20)]
            results = await asyncio.gather(*map(session.call, calls))
        assert [result.text for result in results] == [f"slept {call.arguments['seconds']}" for call in calls]

    async def a_call_that_is_cancelled(toolset: Any) -> None:
        call = asyncio.create_task(rig.call(toolset, "nap", seconds=60))
        while "nap 60" not in await rig.call(toolset, "has_begun"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        while "nap 60" not in await rig.call(toolset, "was_cancelled"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async with rig.started(rig.options(server=server)) as toolset:
        await answers(toolset)
        await errors(toolset)
        await several_contents(toolset)
        await parallel_calls(toolset)
        await a_call_that_is_cancelled(toolset)
        assert toolset.servers["raw"].connections[0].restarts == 0


async def test_images_for_a_model_that_takes_them(rig: Any) -> None:
    pytest.importorskip("PIL", reason="Pillow isn't installed")
    server = {"command": rig.options().servers["raw"].command, "args": [rig.toy]}

    options = rig.options(server=server)
    async with rig.started(options, processor=object()) as toolset, rig.episode(toolset) as session:
        result = await session.call(ToolCall("contents", {"kinds": ["image", "broken", "scan"]}))
    assert [item.data.size for item in result.media] == [(2, 3), (2, 3)]
    assert "can't be shown" in result.text


async def test_a_server_that_dies_in_mid_call(rig: Any, toy: Toy) -> None:
    server, process = toy

    options = rig.options(server=server, restart={"attempts": 100, "first_delay": 0.1, "max_delay": 0.5})
    async with rig.started(options) as toolset:
        first = await rig.call(toolset, "whoami")
        calls = [rig.call(toolset, "nap", seconds=100) for _ in range(4)]
        results = await asyncio.gather(*calls, rig.call(toolset, "crash", how="kill"), return_exceptions=True)
        assert [type(result) for result in results] == [ToolError] * 5
        assert all("was lost during the call" in str(result) for result in results)
        if process is not None:
            # What keeps it going elsewhere starts it again.
            process.kill()
            await asyncio.to_thread(process.start)
        assert await rig.call(toolset, "whoami") != first
        assert toolset.servers["raw"].connections[0].restarts >= 1


async def test_a_server_that_freezes(rig: Any, toy: Toy, tmp_path: Path) -> None:
    server, process = toy
    sign = tmp_path / "frozen"

    restart = {"probe_timeout": 1.0, "attempts": 100, "first_delay": 0.1, "max_delay": 0.5}
    async with rig.started(rig.options(server=server, restart=restart)) as toolset:
        call = asyncio.create_task(rig.call(toolset, "freeze", seconds=600, sign=str(sign)))
        while not sign.exists():  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        call = asyncio.create_task(rig.call(toolset, "add", a=1, b=2))
        while toolset.servers["raw"].connections[0].restarts == 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert "doesn't answer within 1 s" in toolset.servers["raw"].connections[0].reason
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.start)
        assert await call == "3"


@pytest.mark.parametrize("toy", ["streamable-http"], indirect=True)
async def test_a_server_that_forgot_the_session(rig: Any, toy: Toy) -> None:
    """It was restarted while nothing was under way: the next call is made, not lost."""
    server, process = toy

    restart = {"attempts": 100, "first_delay": 0.1, "max_delay": 0.5}
    async with rig.started(rig.options(server=server, restart=restart)) as toolset:
        assert await rig.call(toolset, "add", a=1, b=2) == "3"
        process.kill()
        await asyncio.to_thread(process.start)
        assert await rig.call(toolset, "add", a=3, b=4) == "7"


class Refusing(http.server.BaseHTTPRequestHandler):
    """An HTTP server that is no MCP server: its path is the status that it answers with."""

    def do_GET(self) -> None:
        body = b"<html>hello</html>"
        self.send_response(int(self.path.strip("/")))
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.mark.parametrize("kind", ["streamable-http", "sse"])
@pytest.mark.parametrize("status", [200, 401, 404, 500])
async def test_a_url_that_is_no_mcp_server(rig: Any, answering: Any, kind: str, status: int) -> None:
    with answering(Refusing) as url:
        entry = {"url": f"{url}/{status}", "type": kind, "headers": {"Authorization": "Bearer hunter2"}}
        toolset = rig.toolset(rig.options(server=entry, start_timeout=3.0))
        with pytest.raises(ToolsetError, match="MCP server 'raw' didn't start: ") as caught:
            await toolset.start()
        assert str(status) in str(caught.value) or status == 200
        assert "Is it running, and are its `url`, `type` and `headers` right?" in str(caught.value)
        assert "hunter2" not in str(caught.value)


class Redirecting(Refusing):
    """Redirects to where its path says; `/200` isn't redirected."""

    def do_GET(self) -> None:
        if self.path == "/200":
            super().do_GET()
            return
        self.send_response(307)
        self.send_header("location", self.path.partition("?to=")[2])
        self.send_header("content-length", "0")
        self.end_headers()


@pytest.mark.parametrize(("to", "problem"), [("/200", "text/html"), ("http://127.0.0.2:1/200", "307")])
async def test_sse_is_redirected_within_its_origin_alone(rig: Any, answering: Any, to: str, problem: str) -> None:
    with answering(Redirecting) as url:
        entry = {"url": f"{url}/?to={to}", "type": "sse", "headers": {"Authorization": "Bearer hunter2"}}
        with pytest.raises(ToolsetError, match=problem):
            await rig.toolset(rig.options(server=entry, start_timeout=5.0)).start()
