"""The local server: the API on top of the plugin `python`, asked by the client and by hand."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

pytest.importorskip("toolrl_plugin_python", reason="the server needs the plugin `python`")

from toolrl.cli.main import main
from toolrl.errors import ConfigError, TransientToolError
from toolrl_plugin_sandbox_fusion import languages
from toolrl_plugin_sandbox_fusion.api import CommandResult, RunRequest, RunResponse, SandboxClient
from toolrl_plugin_sandbox_fusion.options import SandboxRewardOptions
from toolrl_plugin_sandbox_fusion.reward import SandboxReward
from toolrl_plugin_sandbox_fusion.runner import Bounds, ProgramRunner
from toolrl_plugin_sandbox_fusion.serve import SandboxServer
from toolrl_testing import make_build_context, make_episode, make_task

COMMAND = (sys.executable, "-m", "toolrl", "sandbox-fusion", "serve")


@functools.cache
def runner(*names: str, bounds: Bounds | None = None) -> ProgramRunner:
    try:
        return ProgramRunner(python=sys.executable, languages=list(names) or ["python"], bounds=bounds)
    except ConfigError as error:
        pytest.skip(f"programs can't be isolated here: {error}")


@asynccontextmanager
async def serving(
    *names: str, bounds: Bounds | None = None, **settings: Any
) -> AsyncIterator[tuple[SandboxServer, SandboxClient]]:
    """A server of these languages and a client of it."""
    server = SandboxServer(runner(*names, bounds=bounds), **settings)
    async with server, SandboxClient(server.url) as client:
        yield server, client


def answers(*requests: RunRequest, names: tuple[str, ...] = (), bounds: Bounds | None = None) -> list[RunResponse]:
    """The answers to requests that are made at once."""

    async def ask() -> list[RunResponse]:
        async with serving(*names, bounds=bounds) as (_, client):
            return await asyncio.gather(*(client.run(request) for request in requests))

    return asyncio.run(ask())


def answer(request: RunRequest, *names: str, bounds: Bounds | None = None) -> RunResponse:
    return answers(request, names=names, bounds=bounds)[0]


def ran(response: RunResponse) -> CommandResult:
    assert response.run_result is not None, response
    return response.run_result


class TestPrograms:
    def test_a_file_of_the_request_doesnt_replace_its_program(self) -> None:
        source = languages.LANGUAGES["python"].source
        evil = base64.b64encode(b"print('evil')").decode()
        names = (name.format(source) for name in ("{}", "./{}", ".//{}", "./././{}"))
        assert ran(answer(RunRequest("print('mine')", files=dict.fromkeys(names, evil)))).stdout == "mine\n"

    def test_a_program_and_its_output(self) -> None:
        found = answer(RunRequest("import sys\nprint(6 * 7)\nprint('e', file=sys.stderr)"))
        assert (found.status, found.message, found.compile_result, found.files) == ("Success", "", None, {})
        run = ran(found)
        assert (run.status, run.return_code, run.stdout, run.stderr) == ("Finished", 0, "42\n", "e\n")
        assert run.execution_time is not None
        assert 0 < run.execution_time < 30

    def test_how_programs_end(self) -> None:
        failed, exited, killed, asks = answers(
            RunRequest("print('a')\nraise ValueError('no')"),
            RunRequest("raise SystemExit(3)"),
            RunRequest("import os\nos.kill(os.getpid(), 15)"),
            RunRequest("print(input())"),
        )
        assert (failed.status, ran(failed).status, ran(failed).return_code) == ("Failed", "Finished", 1)
        assert ran(failed).stdout == "a\n"
        assert "ValueError: no" in str(ran(failed).stderr)
        assert (ran(exited).return_code, ran(killed).return_code) == (3, -15)
        assert "EOFError" in str(ran(asks).stderr)

    def test_a_program_that_takes_too_long(self) -> None:
        found = answer(RunRequest("print('so far', flush=True)\nwhile True: pass", run_timeout=3))
        run = ran(found)
        assert (found.status, run.status, run.return_code) == ("Failed", "TimeLimitExceeded", None)
        assert run.stdout == "so far\n"

    def test_files_in_and_out(self) -> None:
        found = answer(
            RunRequest(
                "data = open('in/a.bin', 'rb').read()\nopen('out.bin', 'wb').write(data[::-1])",
                files={"in/a.bin": base64.b64encode(b"\x00\xff").decode()},
                fetch_files=["out.bin", "none.txt"],
            )
        )
        assert found.status == "Success", found
        assert found.files == {"out.bin": base64.b64encode(b"\xff\x00").decode()}

    def test_a_language_that_isnt_there(self) -> None:
        found = answer(RunRequest("print(1)", language="verilog"))
        assert (found.status, found.run_result) == ("SandboxError", None)
        assert found.message == "this server has no 'verilog'; it has python"

    @pytest.mark.parametrize(
        "name",
        [
            pytest.param(name, marks=() if name in ("python", "cpp") else pytest.mark.slow)
            for name in sorted(languages.LANGUAGES)
        ],
    )
    def test_every_language_that_works_here(self, name: str) -> None:
        if name not in languages.installed(sys.executable):
            pytest.skip(f"the tool of {name} isn't on this machine")
        request = RunRequest(languages.LANGUAGES[name].probe, name, compile_timeout=60, run_timeout=60)
        try:
            found = answer(request, name)
        except ConfigError as error:
            pytest.skip(f"{name} doesn't work in the sandbox: {error}")
        assert found.status == "Success", found
        assert (found.compile_result is not None) == (languages.LANGUAGES[name].compile is not None)

    def test_compile_errors(self) -> None:
        if "cpp" not in languages.installed(sys.executable):
            pytest.skip("no C++ compiler on this machine")
        wrong, slow = answers(
            RunRequest("int main() { return x; }", "cpp", compile_timeout=60),
            RunRequest("int main() { return 0; }", "cpp", compile_timeout=0.001),
            names=("cpp",),
        )
        assert (wrong.status, wrong.run_result) == ("Failed", None)
        assert wrong.compile_result is not None
        assert wrong.compile_result.return_code == 1
        assert "not declared" in str(wrong.compile_result.stderr)
        assert slow.compile_result is not None
        assert (slow.status, slow.compile_result.status) == ("Failed", "TimeLimitExceeded")


async def test_the_reward_over_the_server() -> None:
    async with serving() as (server, _):
        reward = SandboxReward(
            SandboxRewardOptions(sandbox_fusion_url=server.url, timeout=20, max_concurrent=2), make_build_context()
        )
        tests = {"inputs": ["1\n", "2\n", "3\n"], "outputs": ["2", "4", "7"]}
        double = make_episode("```python\nprint(2 * int(input()))\n```", task=make_task(answer=tests))
        calls = {"fn_name": "add", "inputs": ["1\n2", [3, 4]], "outputs": ["3", 7]}
        add = make_episode("```python\ndef add(a, b): return a + b\n```", task=make_task(answer=calls))
        assert [(await reward.score(episode)).value for episode in (double, add)] == [2 / 3, 1.0]


class TestRequests:
    async def post(self, *bodies: Any) -> list[tuple[int, Any]]:
        found = []
        async with serving() as (server, _), aiohttp.ClientSession() as session:
            for body in bodies:
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                sent = {"Content-Type": "application/json"}
                async with session.post(f"{server.url}/run_code", data=data, headers=sent) as response:
                    found.append((response.status, await response.json()))
        return found

    async def test_what_cant_be_read_is_said_with_its_place(self) -> None:
        good = {"code": "print(1)", "language": "python"}
        found = await self.post(
            b"{",
            [],
            {"language": "python"},
            {**good, "language": "cobol"},
            {**good, "run_timeout": "soon"},
            {**good, "run_timeout": -1},
            {**good, "run_timeout": 1e6},
            {**good, "files": {"/etc/passwd": ""}},
            {**good, "files": {"a": "not base64"}},
            {**good, "fetch_files": ["../a"]},
            b"[" * 100_000,
        )
        assert [status for status, _ in found] == [422] * 11
        places = [body["detail"][0]["loc"] for _, body in found]
        assert places == [
            ["body"], ["body"], ["body", "code"], ["body", "language"], ["body", "run_timeout"],
            ["body", "run_timeout"], ["body", "run_timeout"], ["body", "files"], ["body", "files"],
            ["body", "fetch_files"], ["body"],
        ]  # fmt: skip
        assert all(set(body["detail"][0]) == {"loc", "msg", "type"} for _, body in found)

    async def test_a_request_as_the_documentation_has_it(self) -> None:
        body = {"code": 'print("Hello, world!")', "language": "python", "unknown": 1, "files": {"a.txt": None}}
        ((status, found),) = await self.post(body)
        assert status == 200
        found["run_result"]["execution_time"] = None
        assert found == {
            "status": "Success",
            "message": "",
            "compile_result": None,
            "run_result": {
                "status": "Finished",
                "execution_time": None,
                "return_code": 0,
                "stdout": "Hello, world!\n",
                "stderr": "",
            },
            "executor_pod_name": None,
            "files": {},
        }


class TestManyRequests:
    async def test_one_too_many_is_told_to_come_back(self) -> None:
        slow = RunRequest("import time\ntime.sleep(1)")
        async with serving(workers=1, queue=1) as (_, client):
            found = await asyncio.gather(*(client.run(slow) for _ in range(6)), return_exceptions=True)
        busy = [one for one in found if isinstance(one, TransientToolError)]
        assert len(busy) == 4
        assert all(error.retry_after == 1.0 for error in busy)
        assert [one.status for one in found if isinstance(one, RunResponse)] == ["Success"] * 2

    async def test_requests_that_dont_come_take_no_place(self) -> None:
        begin = b"POST /run_code HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        begin += b"Content-Length: 100\r\n\r\n{"
        async with serving(workers=1, queue=1) as (server, client):
            address = server.url.removeprefix("http://").split(":")
            slow = [await asyncio.open_connection(address[0], int(address[1])) for _ in range(8)]
            for _, writer in slow:
                writer.write(begin)
                await writer.drain()
            done = await client.run(RunRequest("print(6 * 7)"))
            for _, writer in slow:
                writer.close()
        assert ran(done).stdout == "42\n"

    async def test_a_client_that_leaves_takes_its_program_with_it(self) -> None:
        async with serving(workers=1) as (_, client):
            begin = time.monotonic()
            left = asyncio.create_task(client.run(RunRequest("import time\ntime.sleep(60)", run_timeout=60)))
            await asyncio.sleep(0.3)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            await client.run(RunRequest("print(1)"))
            assert time.monotonic() - begin < 30


class TestCommand:
    def test_it_serves_until_it_is_told_to_stop(self) -> None:
        runner()  # skips where nothing can be isolated
        process = subprocess.Popen(
            [*COMMAND, "--port", "0", "--languages", "python", "--workers", "1"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            first = process.stdout.readline()
            url = re.fullmatch(r"serving on (http://127\.0\.0\.1:\d+/run_code)\n", first)
            assert url is not None, first + process.stdout.read()
            assert process.stdout.readline() == "languages: python\n"
            assert process.stdout.readline().startswith("isolation: ")

            async def ask() -> RunResponse:
                async with SandboxClient(url[1]) as client:
                    return await client.run(RunRequest("print(6 * 7)"))

            found = asyncio.run(ask())
            assert ran(found).stdout == "42\n"
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            assert process.stdout.read() == "stopping\n"
        finally:
            process.kill()
            process.wait()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--host", "0.0.0.0"], "anyone who connects can run code"),
            (["--languages", "cobol"], "no language 'cobol'"),
            (["--languages", "verilog"], "no language 'verilog'"),
            (["--workers", "0"], "0 is below 1"),
            (["--python", "/no/python"], "can't be run"),
            (["--readable", "/no/folder"], "expected an absolute path that exists"),
        ],
    )
    def test_mistakes(self, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        try:
            status = main(["sandbox-fusion", "serve", "--port", "0", *arguments])
        except SystemExit as error:  # argparse's
            status = int(error.code or 0)
        assert status != 0
        assert message in capsys.readouterr().err
