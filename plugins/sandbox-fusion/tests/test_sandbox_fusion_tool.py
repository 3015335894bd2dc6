"""The tool `code_interpreter`: what it sends for a call, what the model reads, files, errors."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from sandbox_answers import finished

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ConfigError, DataError, ToolError, ToolsetError
from toolrl.protocols import EpisodeContext
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.rate_limits import Limiter
from toolrl.types import ToolCall, ToolResult
from toolrl_common import http_client
from toolrl_plugin_sandbox_fusion.api import RunRequest
from toolrl_plugin_sandbox_fusion.options import CodeInterpreterOptions
from toolrl_plugin_sandbox_fusion.tool import PROBE, CodeInterpreter
from toolrl_testing import make_build_context, make_episode_context, make_task
from toolrl_testing.http_stub import HttpReply, HttpStub


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "FIRST_PAUSE", 0.01)


def make(url: str, *, shared_limit: Any = None, **options: Any) -> CodeInterpreter:
    given = {"sandbox_fusion_url": url, "probe": False, "patience": 0, **options}
    return CodeInterpreter(CodeInterpreterOptions(**given), make_build_context(shared_limit=shared_limit))


def shared_limits() -> Any:
    """The limits of a run, as a tool gets them from its BuildContext."""
    endpoints = Endpoints()

    async def shared_limit(name: str, permits: int) -> Limiter:
        return await endpoints.limiter(name, PolicyOptions(concurrency=permits, limit_name=name))

    return shared_limit


@asynccontextmanager
async def running(*tools: CodeInterpreter) -> AsyncIterator[None]:
    try:
        for tool in tools:
            await tool.start()
        yield
    finally:
        for tool in tools:
            await tool.stop()


def answers(
    tool: CodeInterpreter,
    calls: Sequence[Mapping[str, Any]],
    tools_kwargs: Mapping[str, Any] | None = None,
    context: EpisodeContext | None = None,
) -> list[ToolResult]:
    """The answers to calls of one episode, one after the other."""
    task = make_task(tools_kwargs=tools_kwargs or {})
    episode = context or make_episode_context(task)

    async def run() -> list[ToolResult]:
        async with running(tool), tool.open(task, episode) as session:
            return [await session.call(ToolCall("code_interpreter", call)) for call in calls]

    return asyncio.run(run())


def ask(tool: CodeInterpreter, **arguments: Any) -> ToolResult:
    return answers(tool, [arguments])[0]


class TestCall:
    def test_what_is_sent_and_what_comes_back(self, stub: HttpStub) -> None:
        stub.answer = lambda request: HttpReply(finished("42\n"))
        found = ask(make(stub.url), code="print(6 * 7)")
        assert (found.text, found.error, found.reward) == ("42\n", None, None)
        assert found.metrics == {"succeeded": 1.0, "retries": 0.0, "queue_seconds": found.metrics["queue_seconds"]}
        assert stub.requests == [
            {
                "path": "/run_code",
                "compile_timeout": 30.0,
                "run_timeout": 30.0,
                "memory_limit_MB": 1024,
                "code": "print(6 * 7)",
                "stdin": None,
                "language": "python",
                "files": {},
                "fetch_files": [],
            }
        ]

    def test_a_language_that_isnt_there(self, stub: HttpStub) -> None:
        with pytest.raises(ToolError, match="'cobol' isn't one of python, cpp"):
            ask(make(stub.url), code="1", language="cobol")
        with pytest.raises(ToolError, match="'go' isn't one of python, cpp"):
            ask(make(stub.url, languages=["python", "cpp"]), code="1", language="go")
        assert stub.requests == []

    @pytest.mark.parametrize(
        ("options", "given", "sent"),
        [({}, 3, (3, 3)), ({}, None, (30, 30)), ({"compile_timeout": 9, "default_timeout": 4}, 0.5, (9, 0.5))],
    )
    def test_a_call_may_set_its_timeout(self, stub: HttpStub, options: Any, given: Any, sent: Any) -> None:
        stub.script(HttpReply(finished("42\n")))
        ask(make(stub.url, **options), code="1", timeout=given)
        assert (stub.requests[0]["compile_timeout"], stub.requests[0]["run_timeout"]) == sent

    @pytest.mark.parametrize("given", [0, -1, True, "30", float("inf"), float("nan"), [3]])
    def test_a_timeout_that_is_no_time(self, stub: HttpStub, given: Any) -> None:
        with pytest.raises(ToolError, match="'timeout'"):
            ask(make(stub.url), code="1", timeout=given)
        assert stub.requests == []

    @pytest.mark.parametrize("arguments", [{}, {"code": 7}, {"code": ["a"]}])
    def test_code_that_is_no_text(self, stub: HttpStub, arguments: dict[str, Any]) -> None:
        with pytest.raises(ToolError, match="'code': expected a text"):
            ask(make(stub.url), **arguments)


class TestAnswer:
    def test_an_error_of_the_program_is_an_answer(self, stub: HttpStub) -> None:
        stub.script(HttpReply(finished("a\n", "ValueError: no\n", 1)))
        found = ask(make(stub.url), code="1")
        assert (found.text, found.error, found.metrics["succeeded"]) == ("a\nValueError: no\n", None, 0.0)

    def test_a_failed_sandbox_is_an_error(self, stub: HttpStub) -> None:
        stub.script(HttpReply(finished(status="SandboxError", message="no disk", run_result=None)))
        with pytest.raises(ToolError, match="no disk") as error:
            ask(make(stub.url), code="1")
        assert error.value.kind == "sandbox_error"

    @pytest.mark.parametrize("status", [429, 503])
    def test_a_busy_sandbox_is_asked_again(self, stub: HttpStub, status: int) -> None:
        stub.script(*(HttpReply(b"", status) for _ in range(3)), HttpReply(finished("42\n")))
        found = ask(make(stub.url, patience=60), code="1")
        assert (found.text, found.metrics["retries"]) == ("42\n", 3.0)

    def test_as_verl_says_it(self, stub: HttpStub) -> None:
        stub.script(
            HttpReply(finished("a\n", "ValueError: no\n", 1)),
            HttpReply(finished(status="Failed", run_result={"status": "TimeLimitExceeded", "stdout": "so far"})),
            HttpReply(finished(status="SandboxError", run_result=None)),
            HttpReply(b"no", 422),
            HttpReply(b"{"),
            HttpReply(b"", 503),
        )
        found = answers(make(stub.url, compat="verl"), [{"code": "1"}] * 6)
        assert [result.text for result in found] == ["a\nValueError: no\n"] + ["no stdout here"] * 5
        assert [result.error for result in found] == [None] * 6


class TestFiles:
    def test_local_files_go_beside_every_program(self, stub: HttpStub, tmp_path: Path) -> None:
        (tmp_path / "data.bin").write_bytes(b"\x00\xff")
        ask(make(stub.url, files={"in/data.bin": str(tmp_path / "data.bin")}), code="1")
        assert stub.requests[0]["files"] == {"in/data.bin": base64.b64encode(b"\x00\xff").decode()}

    def test_a_file_that_isnt_there_is_told_when_the_run_starts(self, stub: HttpStub, tmp_path: Path) -> None:
        with pytest.raises(ToolsetError, match=r"none\.txt.*No such file"):
            ask(make(stub.url, files={"a": str(tmp_path / "none.txt")}), code="1")

    def test_a_task_brings_its_own(self, stub: HttpStub) -> None:
        kwargs = {"code_interpreter": {"create_kwargs": {"files": {"a.txt": "YQ=="}, "ground_truth": "x"}}}
        answers(make(stub.url), [{"code": "1"}], kwargs)
        assert stub.requests[0]["files"] == {"a.txt": "YQ=="}

    @pytest.mark.parametrize("files", ["x", [1], {"a": 1}, {"a": "not base64!"}])
    def test_files_of_a_task_that_are_none(self, stub: HttpStub, files: Any) -> None:
        with pytest.raises(DataError, match="base64"):
            answers(make(stub.url), [], {"code_interpreter": {"create_kwargs": {"files": files}}})

    def test_what_is_fetched_is_there_again_in_the_next_call(self, stub: HttpStub) -> None:
        stub.answer = lambda request: HttpReply(finished(files={"out.txt": "aGk=", "other": "YQ=="}))
        context = make_episode_context()
        answers(make(stub.url, fetch_files=["out.txt"]), [{"code": "1"}, {"code": "2"}], context=context)
        assert [request["files"] for request in stub.requests] == [{}, {"out.txt": "aGk="}]
        assert context.shared == {"sandbox_files": {"out.txt": b"hi"}}


class TestStart:
    def test_a_sandbox_that_comes_up_late(self, stub: HttpStub) -> None:
        stub.script(HttpReply(b"", 503), HttpReply(b"", 502), HttpReply(finished()))
        ask(make(stub.url, probe=True), code="x")
        assert [request["code"] for request in stub.requests] == [PROBE, PROBE, PROBE, "x"]


class TestPlaces:
    """What `num_workers` and `rate_limit` bound in one process."""

    async def most_at_once(self, stub: HttpStub, expected: int, *tools: CodeInterpreter) -> int:
        def answer(request: dict[str, Any]) -> HttpReply:
            stub.meet(expected)
            return HttpReply(finished("ok\n"))

        stub.answer = answer
        async with running(*tools):
            await asyncio.gather(*(tool.run(RunRequest("1")) for tool in tools for _ in range(12)))
        return stub.most_at_once

    async def test_the_limit_of_the_run_holds_for_all_tools_of_a_sandbox(self, stub: HttpStub) -> None:
        shared = shared_limits()
        two = [make(stub.url, shared_limit=shared, num_workers=4, rate_limit=3) for _ in range(2)]
        assert await self.most_at_once(stub, 3, *two) == 3

    async def test_without_the_limit_of_the_run_only_workers_count(self, stub: HttpStub) -> None:
        options = {"num_workers": 4, "rate_limit": 1, "enable_global_rate_limit": False}
        assert await self.most_at_once(stub, 8, make(stub.url, **options), make(stub.url, **options)) == 8

    async def test_two_limits_under_one_name_are_an_error(self, stub: HttpStub) -> None:
        shared = shared_limits()
        with pytest.raises(ConfigError, match=r"concurrency 3.*concurrency 4"):
            async with running(*(make(stub.url, shared_limit=shared, rate_limit=n) for n in (3, 4))):
                pass
        async with running(make(stub.url + "/other", shared_limit=shared, rate_limit=4)):
            pass

    @pytest.mark.parametrize(
        "bad",
        [
            HttpReply(b"broken", 500),
            HttpReply(b"{"),
            HttpReply(drop=True),
            HttpReply(b"", 503),
            HttpReply(finished(status="SandboxError", run_result=None)),
        ],
    )
    async def test_a_call_that_fails_loses_no_place(self, stub: HttpStub, bad: HttpReply) -> None:
        def answer(request: dict[str, Any]) -> HttpReply:
            stub.meet(3)
            return bad if request["code"] == "5" else HttpReply(finished(f"{request['code']}\n"))

        stub.answer = answer
        tool = make(stub.url, num_workers=3)
        async with running(tool), tool.open(make_task(), make_episode_context()) as session:
            calls = (session.call(ToolCall("code_interpreter", {"code": str(n)})) for n in range(12))
            found: list[Any] = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(found.pop(5), ToolError)
        assert [result.text for result in found] == [f"{n}\n" for n in range(12) if n != 5]
        assert stub.most_at_once == 3

    async def test_a_busy_sandbox_holds_no_place(self, stub: HttpStub) -> None:
        def answer(request: dict[str, Any]) -> HttpReply:
            again = sum(one["code"] == "busy" for one in stub.requests) > 2
            return HttpReply(finished("ok\n")) if request["code"] == "free" or again else HttpReply(b"", 503)

        stub.answer = answer
        tool = make(stub.url, num_workers=1, patience=60)
        async with running(tool):
            busy = asyncio.create_task(tool.run(RunRequest("busy")))
            while not stub.requests:  # noqa: ASYNC110 - the server is in another thread
                await asyncio.sleep(0.001)
            await tool.run(RunRequest("free"))
            assert not busy.done()
            await busy

    async def test_a_cancelled_call_leaves_the_queue(self, stub: HttpStub) -> None:
        go = threading.Event()

        def answer(request: dict[str, Any]) -> HttpReply:
            go.wait(20)
            return HttpReply(finished("ok\n"))

        stub.answer = answer
        tool = make(stub.url, num_workers=1)
        async with running(tool):
            calls = [asyncio.create_task(tool.run(RunRequest(str(n)))) for n in range(3)]
            while not stub.requests:  # noqa: ASYNC110 - the server is in another thread
                await asyncio.sleep(0.001)
            calls[0].cancel()
            calls[1].cancel()
            go.set()
            await calls[2]
        assert [request["code"] for request in stub.requests] == ["0", "2"]


class TestSpec:
    def test_languages_are_named_where_there_are_several(self, stub: HttpStub) -> None:
        spec = make(stub.url, languages=["python", "cpp"], description="Runs code.").spec
        assert spec.description == "Runs code."
        assert spec.parameters["properties"]["language"]["enum"] == ["python", "cpp"]
        assert spec.parameters["required"] == ["code"]
        assert "language" not in make(stub.url, languages=["python"]).spec.parameters["properties"]


class TestOptions:
    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({}, "sandbox_fusion_url"),
            ({"sandbox_fusion_url": ""}, "expected an address"),
            ({"sandbox_fusion_url": "localhost:8080"}, "expected an address"),
            ({"default_language": "cobol"}, "no language 'cobol'"),
            ({"languages": ["cpp"]}, "isn't among"),
            ({"languages": []}, "languages"),
            ({"rate_limit": 0}, "rate_limit"),
            ({"num_workers": 0}, "num_workers"),
            ({"default_timeout": 0}, "default_timeout"),
            ({"memory_limit_mb": -2}, "memory_limit_mb"),
            ({"compat": "other"}, "compat"),
            ({"ratelimit": 3}, "ratelimit"),
        ],
    )
    def test_mistakes(self, given: dict[str, Any], message: str) -> None:
        if given:
            given = {"sandbox_fusion_url": "http://a", **given}
        with pytest.raises(ValidationError, match=message):
            CodeInterpreterOptions(**given)
