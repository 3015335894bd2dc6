"""The client against a real HTTP server: recorded exchanges, what statuses mean, bounds, what is an answer."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from sandbox_answers import finished

from toolrl.errors import ToolsetError, TransientToolError
from toolrl_plugin_sandbox_fusion import api
from toolrl_plugin_sandbox_fusion.api import CommandResult, RunRequest, RunResponse, SandboxApiError, SandboxClient
from toolrl_testing.http_stub import HttpReply, HttpStub

EXCHANGES = sorted((Path(__file__).parent / "exchanges").glob("*.json"))


def ask(url: str, request: RunRequest = RunRequest("print(1)"), **kwargs: Any) -> RunResponse:
    async def run() -> RunResponse:
        async with SandboxClient(url, **kwargs) as client:
            return await client.run(request)

    return asyncio.run(run())


@pytest.mark.parametrize("path", EXCHANGES, ids=lambda path: path.stem)
def test_recorded_exchanges(path: Path, stub: HttpStub) -> None:
    exchange = json.loads(path.read_text())
    stub.script(HttpReply(exchange["response"], exchange["status"], exchange["headers"]))
    assert exchange["documented"].startswith(("https://", "RFC"))
    request = RunRequest(**exchange["request"])
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


@pytest.mark.parametrize("status", [429, 502, 503, 504, 401, 404, 400, 422, 500])
def test_what_each_status_means(stub: HttpStub, status: int) -> None:
    """Busy, or a gateway's: it may pass. A wrong address or key is no text for the model. All else is final."""
    stub.script(HttpReply(b"because", status))
    transient, wrong = status in (429, 502, 503, 504), status in (401, 404)
    with pytest.raises(TransientToolError if transient else ToolsetError if wrong else SandboxApiError) as error:
        ask(stub.url)
    assert "because" in str(error.value)
    if isinstance(error.value, ToolsetError):
        assert (error.value.where, "sandbox_fusion_url" in str(error.value.hint)) == (f"{stub.url}/run_code", True)


@pytest.mark.parametrize("body", [b"", b"null", b"[1]", b"{}"])
def test_what_is_no_answer_is_said(stub: HttpStub, body: bytes) -> None:
    stub.script(HttpReply(body))
    with pytest.raises(SandboxApiError, match="can't be read"):
        ask(stub.url)


def test_a_large_answer_is_cut_off(stub: HttpStub) -> None:
    stub.script(HttpReply(finished("x" * (2 << 20))))
    with pytest.raises(SandboxApiError, match=r"larger than 1 MiB \(max_response_mb\)"):
        ask(stub.url, max_response_mb=1)


def test_a_request_may_take_what_its_program_may_and_a_margin(stub: HttpStub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "MARGIN_SECONDS", 0.1)
    gate = threading.Event()
    stub.answer = lambda request: HttpReply(finished(str(gate.wait(60))))
    with pytest.raises(TransientToolError, match=r"no answer within 0\.3 s"):
        ask(stub.url, RunRequest("1", compile_timeout=0.1, run_timeout=0.1))
    gate.set()


def test_fields_of_later_versions_are_ignored_and_missing_ones_are_empty() -> None:
    read = RunResponse.read({"status": "Success", "new": 1, "run_result": {"status": "Finished", "new": 2}})
    assert read == RunResponse("Success", run_result=CommandResult("Finished"))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "body"),
        ({}, "`status`: Field required"),
        ({"status": 1}, "`status`"),
        ({"status": "Success", "message": 1}, "`message`"),
        ({"status": "Success", "run_result": []}, "`run_result`"),
        ({"status": "Success", "run_result": {"stdout": 3}}, "`run_result.stdout`"),
        ({"status": "Success", "compile_result": {"return_code": "0"}}, "`compile_result.return_code`"),
        ({"status": "Success", "compile_result": {"return_code": True}}, "`compile_result.return_code`"),
        ({"status": "Success", "run_result": {"execution_time": "1"}}, "`run_result.execution_time`"),
        ({"status": "Success", "run_result": {"execution_time": 10**400}}, "`run_result.execution_time`"),
        ({"status": "Success", "run_result": {"execution_time": float("nan")}}, "finite number"),
        ({"status": "Success", "files": [1]}, "`files`"),
        ({"status": "Success", "files": {"a": 1}}, "`files.a`"),
    ],
)
def test_what_is_no_answer_is_refused_with_its_place(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunResponse.read(value)
