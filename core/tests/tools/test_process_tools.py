"""Tools in processes: what they give, how they die, how they are stopped, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ArgumentsError, ToolError, ToolTimeoutError, ToolUnavailableError
from toolrl.tools import as_toolset, function, policy, process_tools
from toolrl.tools.process_tools import ProcessPool
from toolrl.tools.subprocess_pool import ProcessCrashError
from toolrl.tools.threads import POOL
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import CallRecord, ToolCall
from toolrl_testing.fakes import make_build_context, make_episode_context, make_task

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")

SOURCE = '''
import os, signal, subprocess, sys, threading, time
from fractions import Fraction
from toolrl.errors import ToolError, ToolTimeoutError, ToolUnavailableError
from toolrl.tools import ArgumentsError, TransientToolError, tool
from toolrl.types import Media, ToolResult

@tool(process=True)
def work(how: str, n: int = 0) -> object:
    """Does something."""
    if how == "pid":
        return str(os.getpid())
    if how == "square":
        return str(n * n), 0.5, {"n": float(n)}
    if how == "print":
        print("noise\\n" * 10)
        sys.stdout.flush()
        return f"read {sys.stdin.read()!r}"
    if how == "exit":
        os._exit(n)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise ValueError("bad page \\ud800")
    if how == "sys.exit":
        sys.exit(3)
    if how == "tool error":
        raise ToolError("no such page")
    if how == "arguments":
        raise ArgumentsError("n is odd")
    if how == "transient":
        raise TransientToolError("busy", retry_after=2.5)
    if how == "own kind":
        class Own(ToolError):
            kind = "own"
        raise Own("mine")
    if how == "hang":
        while True:
            pass
    if how == "children":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        with open(os.environ["CHILD_FILE"], "w") as file:
            file.write(str(child.pid))
        time.sleep(60)
    if how == "orphan":
        if os.fork() == 0:
            os.setsid()  # It holds the worker's pipes open, and is in no group of its.
            time.sleep(n)
            os._exit(0)
        os._exit(4)
    if how == "large":
        return "x" * n
    if how == "object":
        return object()
    if how == "media":
        return ToolResult("seen", media=(Media("image", "/tmp/a.png"),))
    if how == "frames":
        return ToolResult("seen", media=(Media("image", b"raw"),))
    if how == "done":
        return ToolResult("bye", done=True)
    if how == "numbers":
        return "half", Fraction(1, 2), {"third": Fraction(1, 3)}
    if how == "bare":
        class Bare(ToolError):
            def __init__(self):
                Exception.__init__(self, "no such page")
        raise Bare()
    if how == "mute":
        class Mute(Exception):
            def __str__(self):
                raise ValueError
        raise Mute()
    if how == "no text":
        raise ToolError(404)
    if how == "odd wish":
        raise TransientToolError("busy", object())
    if how == "timeout":
        raise ToolTimeoutError("late")
    if how == "unavailable":
        raise ToolUnavailableError("down")
    if how == "closes its pipes":
        os.closerange(3, 20)
        time.sleep(0.2)
        os._exit(n)
    return None

def plain(x: int) -> int:
    """Not decorated."""
    return x + 1

plain_tool = tool(name="other_name", process=True)(plain)

@tool
def in_a_thread() -> str:
    """Somewhere else."""
    return str(os.getpid())
'''
BROKEN = '''
import os
from toolrl.tools import tool
if os.getpid() != int(os.environ["TEST_PID"]):
    raise RuntimeError("no library here")

@tool(process=True)
def broken() -> str:
    """Never runs."""
    return ""
'''


@pytest.fixture(scope="module")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="module", autouse=True)
def pool(patch: pytest.MonkeyPatch) -> Iterator[ProcessPool]:
    """A pool of two workers in place of the shared one; the tests of this module use its workers again and again."""
    own, before = ProcessPool(2), children()
    for module in (function, policy, process_tools):
        patch.setattr(module, "PROCESSES", own)
    yield own
    own.close_idle()
    assert not children() - before


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory, patch: pytest.MonkeyPatch) -> ModuleType:
    """A module with tools that can be imported."""
    folder = tmp_path_factory.mktemp("tools")
    patch.syspath_prepend(str(folder))
    patch.setenv("TEST_PID", str(os.getpid()))
    patch.setenv("CHILD_FILE", str(folder / "child"))
    (folder / "process_tools_of_test.py").write_text(SOURCE)
    (folder / "broken_tools_of_test.py").write_text(BROKEN)
    import process_tools_of_test  # type: ignore[import-not-found]

    module: ModuleType = process_tools_of_test
    return module


def children() -> set[int]:
    """Processes that this one started and hasn't reaped."""
    return {child.pid for child in psutil.Process().children()}


def box_of(target: Any, **policy: Any) -> ToolBox:
    return ToolBox([ToolEntry("t", as_toolset(target, None, make_build_context()), policy=PolicyOptions(**policy))])


def ask(target: Any, *calls: dict[str, Any], together: bool = False, **policy: Any) -> list[CallRecord]:
    """Calls one after the other, or in one turn."""

    async def main() -> list[CallRecord]:
        async with box_of(target, **policy).open(make_task(), make_episode_context()) as session:
            items = [ToolCall(target.name, call) for call in calls]
            if together:
                return list(await session.answer(items))
            return [(await session.answer([item]))[0] for item in items]

    return asyncio.run(main())


def test_results_come_back_whole(tools: ModuleType) -> None:
    pid, square, printed, large, media, done = ask(
        tools.work,
        {"how": "pid"},
        {"how": "square", "n": 7},
        {"how": "print"},
        {"how": "large", "n": 10_000_000},
        {"how": "media"},
        {"how": "done"},
    )
    assert int(pid.result.text) != os.getpid()
    assert (square.result.text, square.result.reward) == ("49", 0.5)
    assert square.result.metrics["n"] == 7.0
    assert printed.result.text == "read ''"
    assert len(large.result.text) == 10_000_000
    assert media.result.media[0].data == "/tmp/a.png"
    assert done.result.done


def test_errors_come_back_as_what_they_are(tools: ModuleType) -> None:
    names = ["raise", "sys.exit", "tool error", "arguments", "own kind", "object", "frames"]
    records = ask(tools.work, *({"how": name} for name in names))
    assert [record.result.error for record in records] == [
        "crash", "crash", "tool_error", "bad_arguments", "own", "crash", "crash",
    ]  # fmt: skip
    assert records[0].result.text == "The tool 'work' crashed: ValueError: bad page \ud800"
    assert records[1].result.text == "The tool 'work' crashed: SystemExit: 3"
    assert [record.result.text for record in records[2:5]] == ["no such page", "n is odd", "mine"]
    assert "returned object" in records[5].result.text
    assert "leaves it as a file's path" in records[6].result.text


async def test_calls_at_once_inside_of_one_call_do_not_share_a_worker(tools: ModuleType, pool: ProcessPool) -> None:
    target = tools.work.traits.process
    async with pool.reserve(target):
        results = await asyncio.gather(*(pool.call(target, {"how": "square", "n": n}) for n in range(5)))
        assert [result.text for result in results] == ["0", "1", "4", "9", "16"]
        late = contextvars.copy_context()
    # A task that outlives the reservation has no part in it.
    task = asyncio.create_task(pool.call(target, {"how": "pid"}), context=late)
    assert (await task).text != ""


async def test_the_policy_sees_what_it_needs(tools: ModuleType) -> None:
    with pytest.raises(ToolError) as caught:
        await tools.work.run({"how": "transient"}, make_episode_context())
    assert (caught.value.transient, caught.value.retry_after) == (True, 2.5)
    with pytest.raises(ArgumentsError, match="n: Input should be a valid integer"):
        await tools.work.run({"how": "square", "n": "x"}, make_episode_context())
    for how, kind in (("timeout", ToolTimeoutError), ("unavailable", ToolUnavailableError)):
        with pytest.raises(kind):
            await tools.work.run({"how": how}, make_episode_context())
    with pytest.raises(ProcessCrashError) as crash:
        await tools.work.run({"how": "raise"}, make_episode_context())
    assert crash.value.__notes__[0].splitlines()[1].endswith("in work")


@pytest.mark.parametrize(
    ("call", "ending"),
    [
        ({"how": "exit", "n": 3}, "ended with status 3"),
        ({"how": "exit", "n": 0}, "ended with status 0"),
        ({"how": "kill"}, "ended with status -9"),
        ({"how": "orphan", "n": 4}, "ended with status 4"),
        ({"how": "closes its pipes", "n": 5}, "ended with status 5"),
    ],
)
def test_a_death_answers_its_call_and_the_next_finds_a_new_worker(
    tools: ModuleType, call: dict[str, Any], ending: str
) -> None:
    before, dead, after = ask(tools.work, {"how": "pid"}, call, {"how": "pid"}, timeout=30)
    assert dead.result.error == "crash"
    assert dead.result.text == f"The tool 'work' crashed: its process {ending}"
    assert int(before.result.text) != int(after.result.text)


def test_a_hung_worker_is_killed_with_what_it_started(tools: ModuleType) -> None:
    first, hung = ask(tools.work, {"how": "pid"}, {"how": "hang"}, timeout=0.3)
    assert [record.result.error for record in (first, hung)] == [None, "timeout"]
    assert gone(int(first.result.text))
    (parent,) = ask(tools.work, {"how": "children"}, timeout=1)
    assert parent.result.error == "timeout"
    assert gone(int(Path(os.environ["CHILD_FILE"]).read_text()))


def gone(pid: int) -> bool:
    """True once the process has ended."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":  # Left to be reaped by the process that takes orphans in.
            return True
        time.sleep(0.01)
    return False


async def test_a_cancelled_episode_kills_its_worker_and_leaves_no_thread(tools: ModuleType) -> None:
    before = POOL.abandoned
    async with box_of(tools.work).open(make_task(), make_episode_context()) as session:
        (record,) = await session.answer([ToolCall("work", {"how": "pid"})])
        task = asyncio.create_task(session.answer([ToolCall("work", {"how": "hang"})]))
        await asyncio.sleep(0.2)
        assert int(record.result.text) in children()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while POOL.abandoned > before:  # noqa: ASYNC110 - no event to wait for
            await asyncio.sleep(0.01)
        assert gone(int(record.result.text))


def test_calls_at_once_use_no_more_workers_than_there_are_and_waiting_is_not_their_time(tools: ModuleType) -> None:
    records = ask(tools.work, *({"how": "pid", "n": n} for n in range(12)), together=True, timeout=20)
    assert len({record.result.text for record in records}) <= 2
    assert all("policy/queue_seconds" in record.result.metrics for record in records)


def test_a_module_that_a_worker_cannot_import_is_answered(tools: ModuleType) -> None:
    import broken_tools_of_test  # type: ignore[import-not-found]

    (record,) = ask(broken_tools_of_test.broken, {})
    assert record.result.error == "crash"
    assert record.result.text == "The tool 'broken' crashed: RuntimeError: no library here"


def test_a_worker_that_died_while_it_was_idle_is_replaced_and_loops_share_workers(tools: ModuleType) -> None:
    first, second = (int(ask(tools.work, {"how": "pid"})[0].result.text) for _ in range(2))
    assert first == second
    os.kill(first, 9)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert int(ask(tools.work, {"how": "pid"})[0].result.text) != first


def test_workers_end_with_the_process_that_started_them(tools: ModuleType) -> None:
    script = (
        "import asyncio, os, sys\n"
        f"sys.path.insert(0, {str(Path(str(tools.__file__)).parent)!r})\n"
        "import process_tools_of_test as module\n"
        "from toolrl_testing.fakes import make_episode_context\n"
        "print(asyncio.run(module.work.run({'how': 'pid'}, make_episode_context())).text, flush=True)\n"
        "os._exit(0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert gone(int(done.stdout))
