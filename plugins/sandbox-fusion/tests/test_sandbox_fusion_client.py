"""The client against a real HTTP server: recorded exchanges, errors, bounds, connections."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from sandbox_stub import Reply, Stub, finished

from toolrl.errors import ToolError, ToolsetError, TransientToolError
from toolrl_common.http_client import refusal_text, without_secrets
from toolrl_plugin_sandbox_fusion import client as client_module
from toolrl_plugin_sandbox_fusion.api import RunRequest, RunResponse
from toolrl_plugin_sandbox_fusion.client import SandboxApiError, SandboxClient, run_code_url

EXCHANGES = sorted((Path(__file__).parent / "exchanges").glob("*.json"))


def ask(url: str, request: RunRequest = RunRequest("print(1)"), **kwargs: Any) -> RunResponse:
    async def run() -> RunResponse:
        async with SandboxClient(url, **kwargs) as client:
            return await client.run(request)

    return asyncio.run(run())


def replay(stub: Stub) -> None:
    """Answer each request that an exchange has with what is recorded for it."""
    recorded = [json.loads(path.read_text()) for path in EXCHANGES]

    def answer(request: dict[str, Any]) -> Reply:
        for exchange in recorded:
            if all(request.get(key) == value for key, value in exchange["request"].items()):
                return Reply(exchange["response"], exchange["status"], exchange["headers"])
        return Reply({"detail": "no such exchange"}, 500)

    stub.answer = answer


def request_of(exchange: dict[str, Any]) -> RunRequest:
    fields = dict(exchange["request"])
    if "memory_limit_MB" in fields:
        fields["memory_limit_mb"] = fields.pop("memory_limit_MB")
    return RunRequest(**fields)


@pytest.mark.parametrize("path", EXCHANGES, ids=lambda path: path.stem)
def test_recorded_exchanges(path: Path, stub: Stub) -> None:
    replay(stub)
    exchange = json.loads(path.read_text())
    assert exchange["documented"].startswith(("https://", "RFC"))
    request = request_of(exchange)
    if exchange["status"] == 200:
        response = ask(stub.url, request)
        assert response.body() == exchange["response"]
    elif exchange["status"] in (429, 503, 504):
        with pytest.raises(TransientToolError, match=f"HTTP {exchange['status']}") as transient:
            ask(stub.url, request)
        assert (transient.value.retry_after is None) == ("Retry-After" not in exchange["headers"])
    else:
        with pytest.raises(SandboxApiError) as refused:
            ask(stub.url, request)
        said = exchange["response"]["detail"]
        assert (said if isinstance(said, str) else said[0]["msg"]) in str(refused.value)
        assert not refused.value.transient
    (got,) = stub.requests
    assert got["path"] == "/run_code"
    assert {key: got[key] for key in exchange["request"]} == exchange["request"]
    assert set(got) == {"path", *RunRequest("").body()}


class TestErrors:
    @pytest.mark.parametrize("status", [429, 502, 503, 504])
    def test_what_passes_is_transient(self, stub: Stub, status: int) -> None:
        stub.script(Reply(b"busy", status, {"Retry-After": "3"}))
        with pytest.raises(TransientToolError, match=f"HTTP {status}") as error:
            ask(stub.url)
        assert error.value.retry_after == 3.0

    @pytest.mark.parametrize("status", [301, 307, 401, 403, 404, 405])
    def test_a_wrong_address_or_key_is_no_text_for_the_model(self, stub: Stub, status: int) -> None:
        stub.script(Reply({"message": "go away"}, status, {"Location": "/other"} if status < 400 else {}))
        with pytest.raises(ToolsetError, match="go away") as error:
            ask(stub.url)
        assert error.value.where == f"{stub.url}/run_code"
        assert "sandbox_fusion_url" in str(error.value.hint)

    @pytest.mark.parametrize("status", [400, 413, 422, 500, 201])
    def test_other_statuses_are_final(self, stub: Stub, status: int) -> None:
        stub.script(Reply(b"because", status))
        with pytest.raises(SandboxApiError, match=rf"HTTP {status}\): because") as error:
            ask(stub.url)
        assert not error.value.transient

    @pytest.mark.parametrize("body", [b"", b"{", b"null", b"[1]", b"\xff\xfe", b"[" * 100_000, b"1" * 5000, b"{}"])
    def test_what_is_no_answer_is_said(self, stub: Stub, body: bytes) -> None:
        stub.script(Reply(body))
        with pytest.raises(SandboxApiError, match="can't be read"):
            ask(stub.url)

    def test_a_large_answer_is_cut_off(self, stub: Stub) -> None:
        stub.script(Reply(finished("x" * (2 << 20))))
        with pytest.raises(SandboxApiError, match="larger than 1 MiB"):
            ask(stub.url, max_response_bytes=1 << 20)
        assert len(ask(stub.url, max_response_bytes=4 << 20).run_result.stdout) == 2 << 20

    def test_nobody_there(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            with pytest.raises(TransientToolError, match="can't be reached"):
                ask(f"http://127.0.0.1:{taken.getsockname()[1]}")

    def test_a_connection_that_breaks(self, stub: Stub) -> None:
        stub.script(Reply(drop=True))
        with pytest.raises(TransientToolError, match="can't be reached"):
            ask(stub.url)

    def test_an_answer_that_breaks_off(self, stub: Stub) -> None:
        body = json.dumps(finished("x" * 100)).encode()
        stub.script(Reply(body[:50], headers={"Content-Length": str(len(body))}, last=True))
        with pytest.raises(TransientToolError):
            ask(stub.url)

    async def test_something_else_than_http(self) -> None:
        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.9\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, SandboxClient(f"http://127.0.0.1:{port}") as client:
            with pytest.raises(ToolError):
                await client.run(RunRequest("1"))

    def test_no_answer_in_time(self, stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_module, "MARGIN_SECONDS", 0.1)

        gate = threading.Event()
        stub.answer = lambda request: Reply(finished(str(gate.wait(60))))
        with pytest.raises(TransientToolError, match=r"no answer within 0\.3 s"):
            ask(stub.url, RunRequest("1", compile_timeout=0.1, run_timeout=0.1))
        gate.set()


class TestConnections:
    async def test_one_connection_serves_calls_one_after_the_other(self, stub: Stub) -> None:
        async with SandboxClient(stub.url) as client:
            for _ in range(3):
                await client.run(RunRequest("1"))
        assert len(stub.requests) == 3
        assert len(stub.connections) == 1

    async def test_the_last_user_closes(self, stub: Stub) -> None:
        client = SandboxClient(stub.url)
        async with client:
            async with client:
                await client.run(RunRequest("1"))
            await client.run(RunRequest("2"))
        with pytest.raises(RuntimeError, match="async with"):
            await client.run(RunRequest("3"))

    def test_headers_are_sent(self, stub: Stub) -> None:
        ask(stub.url, headers={"Authorization": "Bearer key"})
        assert stub.headers[0]["Authorization"] == "Bearer key"
        assert stub.headers[0]["Content-Type"] == "application/json"


class TestTexts:
    @pytest.mark.parametrize(
        ("url", "full"),
        [
            ("http://a:8080", "http://a:8080/run_code"),
            ("http://a:8080/", "http://a:8080/run_code"),
            ("https://a/run_code", "https://a/run_code"),
            ("https://a/sandbox/run_code?x=1", "https://a/sandbox/run_code?x=1"),
        ],
    )
    def test_the_path_is_added_where_there_is_none(self, url: str, full: str) -> None:
        assert run_code_url(url) == full

    @pytest.mark.parametrize("url", ["", "a:8080", "ftp://a", "http://", "http://a:port", "http://[::1", "/run_code"])
    def test_what_is_no_address(self, url: str) -> None:
        with pytest.raises(ValueError, match="expected an address"):
            run_code_url(url)

    def test_an_address_that_is_shown_has_no_secrets(self) -> None:
        assert without_secrets("https://me:pass@a:8/run_code?key=x#y") == "https://a:8/run_code"

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (b"plain", "plain"),
            (b"", "without a word"),
            (b'{"detail": "no"}', "no"),
            (b'{"error": "no"}', "no"),
            (b'{"error": {"message": "no", "code": "because"}}', "no (because)"),
            (b'{"detail": [{"loc": ["body", "code"], "msg": "Field required"}]}', "code: Field required"),
            (b'{"detail": [{"msg": "bad"}, 7]}', "bad; 7"),
            (b'{"detail": 7}', '{"detail": 7}'),
            (b"[1]", "[1]"),
            (b"\xff", "\ufffd"),
        ],
    )
    def test_what_a_refusal_says(self, body: bytes, text: str) -> None:
        assert refusal_text(body) == text
