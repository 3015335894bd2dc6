"""Servers that others wrote, two hundred episodes each, with a kill in mid-call.

| server | from | over |
|---|---|---|
| mcp-server-time, mcp-server-git | PyPI | stdio |
| @modelcontextprotocol/server-everything | npm | stdio, streamable HTTP, SSE |

They are looked for on PATH, beside this Python, and in the folders of TOOLRL_MCP_BIN (separated as those of PATH are):

    npm install --prefix servers @modelcontextprotocol/server-everything …
    TOOLRL_MCP_BIN=servers/node_modules/.bin pytest plugins/mcp/tests/test_mcp_real.py

TOOLRL_MCP_EPISODES sets another number of episodes.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import CallRecord, Episode, ParsedTurn, ToolCall
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.toolset import McpToolset
from toolrl_testing import FakeChatFormat, ScriptedEngine, make_task
from toolrl_testing.fakes import FakeParser

EPISODES = int(os.environ.get("TOOLRL_MCP_EPISODES", "200" if os.environ.get("TOOLRL_SLOW") else "40"))
AT_ONCE = 32
TURNS = 2
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

Calls = list[tuple[str, dict[str, Any]]]


@dataclass
class Case:
    """A server, and how episodes share it."""

    server: dict[str, Any]
    session: str = "shared"
    instances: int = 1
    beside: Callable[[], list[int]] = list
    """Processes of the test's own, which are there before and after."""


def program(name: str) -> str:
    """The path of a server's program; skips the test where it isn't installed."""
    folders = [*os.environ.get("TOOLRL_MCP_BIN", "").split(os.pathsep), str(Path(sys.executable).parent)]
    found = shutil.which(name, path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))
    if found is None:
        pytest.skip(f"{name} isn't installed; install it, or name its folder in TOOLRL_MCP_BIN")
    return str(Path(found).absolute())


class JsonTurns(FakeParser):
    """A parser whose turns are JSON: a list of calls, or a text."""

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        if not text.startswith("["):
            return ParsedTurn(content=text)
        calls = tuple(ToolCall(name, arguments) for name, arguments in json.loads(text))
        return ParsedTurn(items=calls, status="calls")


def environment(toolset: McpToolset) -> Environment:
    entry = ToolEntry("mcp", toolset, policy=PolicyOptions(timeout=60))
    return Environment("default", JsonTurns(), FakeChatFormat(), ToolBox([entry]), max_turns=TURNS + 1)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, or gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t", b"Z")
    except OSError:
        return True


class Killer:
    """Kills the server when a third of the episodes is done and a call is under way that can't have been answered: the
    server is stopped first, and what it has said by then is read."""

    def __init__(self, toolset: McpToolset, pids: Callable[[], list[int]], restart: Callable[[], None] | None) -> None:
        """`pids` gives the numbers of the server's processes. `restart` starts a server that nobody else does."""
        self.in_flight = 0
        """Calls that were under way at the kill."""
        (self._connection,) = next(iter(toolset.servers.values())).connections
        self._pids = pids
        self._restart = restart
        self._begun = 0
        self._ask = self._connection.ask
        self._connection.ask = self._counted  # type: ignore[method-assign]

    async def _counted(self, work: Any, *, repeatable: bool = True) -> Any:
        self._begun += 1
        return await self._ask(work, repeatable=repeatable)

    async def kill(self) -> None:
        connection, victims = self._connection, self._pids()
        assert victims
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)
        while not all(map(is_stopped, victims)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await self._settle()
        self.in_flight, restarts = connection.in_flight, connection.restarts
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if self._restart is not None:
            await asyncio.to_thread(self._restart)
        while connection.restarts == restarts or not connection.usable:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def _settle(self) -> None:
        """Until calls are under way that nothing answers any more: what the server said before is read by then."""
        seen, rounds = (0, 0), 0
        while not seen[1] or rounds < 25:
            await asyncio.sleep(0.01)
            now = (self._begun, self._connection.in_flight)
            seen, rounds = now, rounds + 1 if now == seen else 0


MakeKiller = Callable[[McpToolset, Set[int]], Killer]
"""Given the toolset, and the children that this process had before it started."""


def battery(
    rig: Any, case: Case, calls: Callable[[int], Calls], *, killer: MakeKiller | None = None, answers: Any = None
) -> None:
    """Runs the episodes, and checks each one and what is left behind."""
    turns = [json.dumps(calls(number)) for number in range(EPISODES * TURNS)]
    spoken = itertools.count()

    def script(prompt: str) -> str:
        return "done" if prompt.count("<|tool|>") >= TURNS * len(calls(0)) else turns[next(spoken) % len(turns)]

    options = McpOptions.model_validate(
        {"servers": {"real": case.server}, "session": case.session, "instances": case.instances}
        | {"restart": {"attempts": 50, "first_delay": 0.2, "max_delay": 1.0}}
    )
    done: list[Episode] = []

    async def work() -> Killer | None:
        tasks, older = asyncio.all_tasks(), set(rig.children_of(os.getpid()))
        toolset = rig.toolset(options)
        environments = {"default": environment(toolset)}
        tools = environments["default"].tools
        await tools.start()
        try:
            made = killer(toolset, older) if killer is not None else None
            await run_episodes(environments, script, done, made)
            restarts = sum(one.restarts for server in toolset.servers.values() for one in server.connections)
        finally:
            await tools.stop()
        assert bool(restarts) == (made is not None)
        assert asyncio.all_tasks() == tasks
        assert set(rig.children_of(os.getpid())) - older == set(case.beside())
        return made

    asyncio.run(asyncio.sleep(0))  # What the first event loop opens stays open.
    before = rig.files_by_number()
    made = asyncio.run(asyncio.wait_for(work(), 800))
    # Compared by what they are: a file that an earlier test left and closes meanwhile hides no leak.
    assert not rig.files_by_number() - before
    check_episodes(done, made, len(calls(0)), answers)


async def run_episodes(environments: Any, script: Any, done: list[Episode], killer: Killer | None) -> None:
    """All episodes, and the kill on the way. No more at once than a quarter: some have to begin after the kill."""
    killing: list[asyncio.Task[None]] = []

    def episode_done(episode: Episode) -> None:
        done.append(episode)
        if len(done) == EPISODES // 3 and killer is not None:
            killing.append(asyncio.create_task(killer.kill()))

    runner = Runner(
        ScriptedEngine(script),
        environments,
        concurrency=min(AT_ONCE, EPISODES // 4),
        max_error_rate=0.0,
        on_episode=episode_done,
    )
    limits = Limits(max_turn_tokens=20_000, max_episode_tokens=10**7)
    await runner.run([make_task(id=f"t{number}") for number in range(EPISODES)], 1, limits, round_id="eval-1")
    await asyncio.gather(*killing)


def check_episodes(done: list[Episode], killer: Killer | None, calls: int, answers: Any) -> None:
    """Every call has its answer; those that a kill lost are errors."""
    assert len(done) == EPISODES
    assert not [episode.failure for episode in done if episode.failure is not None]
    records = [record for episode in done for record in episode.calls]
    assert len(records) == EPISODES * TURNS * calls
    assert all(record.result.text for record in records)
    lost = [record for record in records if record.result.error is not None]
    if killer is None:
        assert not lost, lost[0]
    else:
        assert {record.result.error for record in lost} == {"tool_error"}
        assert all("lost during the call" in record.result.text for record in lost)
        assert len(lost) >= killer.in_flight > 0
    for record in records:
        if answers is not None and record.result.error is None:
            answers(record)


def named(calls: Calls) -> Calls:
    """Under full names."""
    return [(f"real-{name}", arguments) for name, arguments in calls]


def stdio_killer(rig: Any, toolset: McpToolset, older: Set[int]) -> Killer:
    """`older` are children of this process that are none of the test's guards."""
    children = rig.children_of
    return Killer(toolset, lambda: [it for guard in set(children(os.getpid())) - older for it in children(guard)], None)


# PyPI.


def test_time(rig: Any) -> None:
    case = Case({"command": program("mcp-server-time")})

    def calls(number: int) -> Calls:
        clock = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo", "time": f"{number % 24:02}:30"}
        return named([("get_current_time", {"timezone": "Europe/Oslo"}), ("convert_time", clock)])

    def answers(record: CallRecord) -> None:
        assert "Oslo" in record.result.text or "+9.0h" in record.result.text

    battery(rig, case, calls, killer=partial(stdio_killer, rig), answers=answers)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git = shutil.which("git")
    if git is None:
        pytest.skip("git isn't installed")
    folder = tmp_path / "repository"
    folder.mkdir()
    who = ["-c", "user.name=n", "-c", "user.email=n@example.com"]
    (folder / "a.txt").write_text("one\n")
    for command in (["init", "-q"], ["add", "a.txt"], [*who, "commit", "-q", "-m", "first words"]):
        subprocess.run([git, *command], cwd=folder, check=True)
    (folder / "a.txt").write_text("two\n")
    return folder


@pytest.mark.slow
def test_git(rig: Any, repository: Path) -> None:
    case = Case({"command": program("mcp-server-git"), "args": ["--repository", str(repository)]})

    def calls(number: int) -> Calls:
        where = {"repo_path": str(repository)}
        return named([("git_log", {**where, "max_count": 1}), ("git_diff_unstaged", where)])

    def answers(record: CallRecord) -> None:
        assert "first words" in record.result.text or "+two" in record.result.text

    battery(rig, case, calls, killer=partial(stdio_killer, rig), answers=answers)


# npm.


def everything_calls(number: int) -> Calls:
    return named([("echo", {"message": f"number {number}"}), ("get-sum", {"a": number, "b": 1})])


def everything_answers(record: CallRecord) -> None:
    assert isinstance(record.call, ToolCall)
    arguments = record.call.arguments
    expected = arguments["message"] if "message" in arguments else f"{arguments['a']} and 1 is {arguments['a'] + 1}"
    assert expected in record.result.text


@pytest.mark.slow
@pytest.mark.parametrize(("session", "instances"), [("shared", 1), ("shared", 3), ("episode", 1)])
def test_everything_over_stdio(rig: Any, session: str, instances: int) -> None:
    server = {"command": program("mcp-server-everything"), "args": ["stdio"]}
    killer = partial(stdio_killer, rig) if (session, instances) == ("shared", 1) else None
    battery(rig, Case(server, session, instances), everything_calls, killer=killer, answers=everything_answers)


@pytest.fixture(params=["streamableHttp", "sse"])
def everything(request: pytest.FixtureRequest, rig: Any) -> Iterator[Any]:
    server = rig.http_server(request.param, [program("mcp-server-everything")])
    server.start()
    try:
        yield server
    finally:
        server.kill()


@pytest.mark.slow
def test_everything_over_http(rig: Any, everything: Any) -> None:
    def killer(toolset: McpToolset, older: Set[int]) -> Killer:
        return Killer(toolset, everything.pids, everything.start)

    case = Case({"url": everything.url}, beside=everything.pids)
    battery(rig, case, everything_calls, killer=killer, answers=everything_answers)


@pytest.mark.slow
@pytest.mark.parametrize("everything", ["streamableHttp"], indirect=True)
def test_sessions_of_episodes_over_http(rig: Any, everything: Any) -> None:
    case = Case({"url": everything.url}, "episode", beside=everything.pids)
    battery(rig, case, everything_calls, answers=everything_answers)
