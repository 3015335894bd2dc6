"""Servers that are started: what they may do wrong, and that nothing of them stays behind."""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import random
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ArgumentsError, ToolError, ToolsetError, TransientToolError
from toolrl.types import ToolCall

LINUX = sys.platform.startswith("linux")
needs_linux = pytest.mark.skipif(not LINUX, reason="reads /proc")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])


async def until(true: Callable[[], bool]) -> None:
    """Until something is so; the test's time limit bounds it."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def nested(depth: int) -> Any:
    """A list in a list in a list …"""
    return functools.reduce(lambda inner, _: [inner], range(depth), 1)


# Starts that fail.


@pytest.mark.parametrize(
    ("modes", "problem"),
    [
        (["early"], r"it ended; its last words:\s+no API key: \*\*\*"),
        (["nonsense"], "validation error|Field required"),
        (["future"], "Unsupported protocol version"),
    ],
)
async def test_starts_that_fail_say_why(rig: Any, modes: list[str], problem: str) -> None:
    server = {"command": sys.executable, "args": [rig.raw, *modes], "env": {"KEY": "hunter2-secret"}}

    toolset = rig.toolset(rig.options(server=server))
    with pytest.raises(ToolsetError, match=f"(?s)MCP server 'raw' didn't start: .*{problem}"):
        await toolset.start()
    assert toolset.servers == {}
    await toolset.stop()


@pytest.mark.parametrize(
    ("modes", "server", "problem"),
    [
        ([], {"command": "no-such-program"}, "can't be run: No such file"),
        ([], {"command": sys.executable, "cwd": "/no/such/folder"}, "No such file or directory"),
        (["mute"], None, r"not ready within 1 s \(start_timeout\)"),
        (["endless"], None, r"not ready within 1 s \(start_timeout\)"),
    ],
)
async def test_commands_that_cant_be_run_or_say_nothing(
    rig: Any, modes: list[str], server: dict[str, Any] | None, problem: str
) -> None:
    toolset = rig.toolset(rig.options(*modes, server=server, start_timeout=1.0))
    with pytest.raises(ToolsetError, match=problem):
        await toolset.start()
    await toolset.stop()


# What servers write.


async def test_noise_on_stdout_is_passed_over(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with rig.started(rig.options("noisy")) as toolset:
            assert await rig.call(toolset, "echo", a="ä\n\u2028") == '{"a": "ä\\n\u2028"}'
            assert await rig.call(toolset, "half") == "cut \N{REPLACEMENT CHARACTER}"
            assert await rig.call(toolset, "latin") == "caf\N{REPLACEMENT CHARACTER}"
            assert toolset.servers["raw"].connections[0].restarts == 0
    assert not caplog.records


@pytest.mark.parametrize(("mode", "count"), [("paged", 5), ("bare", 0)])
async def test_lists_come_in_pages_or_not_at_all(rig: Any, mode: str, count: int) -> None:
    async with rig.started(rig.options(mode)) as toolset:
        assert toolset.names() == tuple(f"raw-tool{number}" for number in range(count))


async def test_odd_names_and_schemas(rig: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with rig.started(rig.options("odd")) as toolset:
        names = toolset.names()
        assert names is not None
        assert names[:2] == ("raw-p_iv__t_n__n", "raw-9_lives")
        assert len(names[2]) == 64
        assert await rig.call(toolset, "päivä/tänään") == "{}"
        async with rig.episode(toolset) as session:
            specs = {spec.name: spec for spec in session.specs()}
        assert specs["raw-9_lives"].parameters["type"] == "object"
        assert specs["raw-9_lives"].description == "The tool 9 lives of raw."
        assert specs["raw-near"].parameters["properties"].keys() == {"a", "b"}
    assert "raw: 'broken': its arguments aren't checked" in caplog.text
    assert "raw: 'far': its arguments aren't checked" in caplog.text


# Calls.


@pytest.mark.parametrize("argument", ["\ud83d", {"\ud83d": 1}, float("nan"), float("inf"), {1}, nested(300)])
async def test_arguments_that_cant_be_sent_harm_nobody(rig: Any, argument: Any) -> None:
    async with rig.started(rig.options()) as toolset:
        other = asyncio.create_task(rig.call(toolset, "slow", seconds=0.5))
        with pytest.raises(ArgumentsError, match="The arguments can't be sent as JSON: "):
            await rig.call(toolset, "echo", a=argument)
        assert await other == '{"seconds": 0.5}'
        assert json.loads(await rig.call(toolset, "echo", a=nested(100))) == {"a": nested(100)}
        assert toolset.servers["raw"].connections[0].restarts == 0


async def test_protocol_errors_are_for_the_model(rig: Any) -> None:
    async with rig.started(rig.options("error")) as toolset:
        with pytest.raises(ToolError, match="no such luck"):
            await rig.call(toolset, "echo")
        assert toolset.servers["raw"].connections[0].usable


async def test_a_crash_answers_every_call_at_once_and_the_server_is_back(rig: Any) -> None:
    async with rig.started(rig.options()) as toolset:
        first = await rig.call(toolset, "pid")
        calls = [rig.call(toolset, "slow", seconds=60) for _ in range(5)]
        results = await asyncio.gather(*calls, rig.call(toolset, "crash"), return_exceptions=True)
        assert [type(result) for result in results] == [TransientToolError] * 5 + [ToolError]
        second = await rig.call(toolset, "pid")
        assert second != first
        connection = toolset.servers["raw"].connections[0]
        assert connection.restarts == 1
        assert "about to crash" in connection.reason


async def test_calls_that_are_cancelled_as_they_are_answered_harm_nobody(rig: Any) -> None:
    chance = random.Random(0)

    async with rig.started(rig.options()) as toolset:
        connection = toolset.servers["raw"].connections[0]

        async def one(number: int) -> None:
            call = asyncio.create_task(rig.call(toolset, "slow", seconds=0.01))
            await asyncio.sleep(chance.uniform(0.0, 0.03))
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await rig.call(toolset, "echo", n=number) == f'{{"n": {number}}}'

        for start in range(0, 100, 10):
            await asyncio.gather(*map(one, range(start, start + 10)))
        assert connection.restarts == 0
        assert connection.in_flight == 0


# Down, and back.


async def test_a_server_that_is_down_fails_episodes_until_it_is_back(rig: Any, tmp_path: Path) -> None:
    switch = tmp_path / "broken"
    code = f"import os, sys; os.path.exists({str(switch)!r}) and sys.exit(9); exec(open({rig.raw!r}).read())"
    server = {"command": sys.executable, "args": ["-c", code]}

    options = rig.options(server=server, restart={"attempts": 2, "first_delay": 0.01, "max_delay": 0.2})
    async with rig.started(options) as toolset:
        switch.touch()
        async with rig.episode(toolset) as session:
            with pytest.raises(ToolError, match="was lost during the call"):
                await session.call(ToolCall("raw-crash", {}))
            with pytest.raises(ToolError, match="is down: "):
                await session.call(ToolCall("raw-echo", {}))
        with pytest.raises(ToolsetError, match="MCP server 'raw' is down: it ended"):
            async with rig.episode(toolset):
                pass
        switch.unlink()
        await until(lambda: toolset.servers["raw"].connections[0].usable)
        assert await rig.call(toolset, "echo") == "{}"


# Nothing is left.


@needs_linux
@pytest.mark.parametrize("how", ["stop", "crash"])
async def test_what_a_server_started_ends_with_it(rig: Any, how: str) -> None:
    server = {"command": sys.executable, "args": [rig.toy]}
    async with rig.started(rig.options(server=server)) as toolset:
        own = int(await rig.call(toolset, "whoami"))
        pids = [own]
        for ignore in (False, True):
            pids += map(int, (await rig.call(toolset, "children", ignore_term=ignore)).split())
        assert all(map(rig.alive, pids))
        if how != "stop":
            with pytest.raises(ToolError, match="was lost during the call"):
                await rig.call(toolset, "crash")
            await rig.call(toolset, "whoami")
            rig.wait_until_gone(*pids)
    rig.wait_until_gone(*pids)


LAUNCHERS = {
    "direct": [],
    "shell": ["sh", "-c", 'exec 3<&0; setsid "$0" "$@" <&3 & wait'],
    "npx": [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"],
}
"""What may stand between a guard and the server: a shell that puts it into the background, or a program like npx."""


@needs_linux
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_death_of_the_run_ends_its_servers(rig: Any, tmp_path: Path, launcher: str) -> None:
    """SIGKILL leaves no chance to clean up; also while a child of the run still holds its descriptors."""
    command, *arguments = [*LAUNCHERS[launcher], sys.executable, rig.toy]
    script = tmp_path / "run.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, os, sys, time
            sys.path.insert(0, {str(Path(__file__).parent)!r})
            from conftest import Rig

            async def main():
                rig = Rig()
                server = {{"command": {command!r}, "args": {arguments!r}}}
                async with rig.started(rig.options(server=server)) as toolset:
                    own = await rig.call(toolset, "whoami")
                    children = await rig.call(toolset, "children", ignore_term=True)
                    fork = os.fork()
                    if fork == 0:
                        time.sleep(600)
                    print(own, children, fork, flush=True)
                    await asyncio.sleep(600)

            asyncio.run(main())
            """
        )
    )
    run = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    *servers, fork = map(int, run.stdout.readline().split())
    run.stdout.close()
    assert all(map(rig.alive, servers))
    run.kill()
    run.wait()
    try:
        rig.wait_until_gone(*servers)
    finally:
        os.kill(fork, signal.SIGKILL)


async def test_the_environment_is_the_servers_own(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUN_SECRET", "hunter2")
    server = {"command": sys.executable, "args": [rig.toy], "env": {"OWN": "yes"}}

    async with rig.started(rig.options(server=server)) as toolset:
        assert await rig.call(toolset, "environment", name="RUN_SECRET") == "not set"
        assert await rig.call(toolset, "environment", name="OWN") == "yes"
        assert await rig.call(toolset, "environment", name="PATH") == os.environ["PATH"]
