"""The run's side of the keeper, where things are cut short."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from toolrl_plugin_python import detection
from toolrl_plugin_python.interpreter import Interpreter
from toolrl_plugin_python.jail import namespaces
from toolrl_plugin_python.jail.settings import JobLimits
from toolrl_plugin_python.keeper_process import KeeperError, KeeperProcess
from toolrl_plugin_python.options import PythonOptions
from toolrl_plugin_python.tool import settings_of

SETTINGS = settings_of(PythonOptions())
LIMITS = JobLimits(0, 0, 0, 0, 0, interpreter=True)


@pytest.mark.parametrize("running", [1, 5, 29])
def test_no_two_jobs_that_run_have_one_user(monkeypatch: pytest.MonkeyPatch, running: int) -> None:
    # As in a container that maps few users, only that here they are very few.
    monkeypatch.setattr(namespaces, "own_user", lambda founder: 30000 + founder % 30)
    taken: set[int] = set()
    for _ in range(running):
        founder = namespaces.fork_founder(taken)
        if founder == 0:
            os._exit(0)
        os.waitpid(founder, 0)
        assert 30000 + founder % 30 not in taken
        taken.add(30000 + founder % 30)


async def cut_short(work: asyncio.Task[None], ticks: int) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("ticks", [2, 50])
def test_a_start_that_is_cancelled_leaves_nothing(descriptors: Callable[[], set[str]], ticks: int) -> None:
    async def work() -> None:
        before = descriptors()
        keeper = KeeperProcess(SETTINGS)
        await cut_short(asyncio.create_task(keeper.start()), ticks)
        await keeper.stop()
        assert descriptors() == before

    asyncio.run(work())


@pytest.mark.parametrize("ticks", [2, 50])
def test_an_interpreter_that_is_cancelled_leaves_nothing(
    any_isolation: str, descriptors: Callable[[], set[str]], ticks: int
) -> None:
    async def work() -> None:
        settings, _ = await asyncio.to_thread(detection.detect, any_isolation, SETTINGS)
        keeper = KeeperProcess(settings)
        await keeper.start()
        try:
            before = descriptors()
            await cut_short(asyncio.create_task(Interpreter(keeper, LIMITS, 100).start()), ticks)
            other = Interpreter(keeper, LIMITS, 100)
            await other.start()
            await cut_short(asyncio.create_task(_run(other)), ticks)
            await other.close()
            assert descriptors() == before
        finally:
            await keeper.stop()

    asyncio.run(work())


async def _run(interpreter: Interpreter) -> None:
    await interpreter.execute("import time; time.sleep(60)", 60, last=True)


def test_walls_that_can_not_be_built_are_an_error(any_isolation: str) -> None:
    async def work() -> None:
        settings, _ = await asyncio.to_thread(detection.detect, any_isolation, SETTINGS)
        keeper = KeeperProcess(replace(settings, readable=(*settings.readable, "/no/such/path"), mode="namespaces"))
        await keeper.start()
        try:
            with pytest.raises(KeeperError, match="can't be isolated: .*"):
                await Interpreter(keeper, LIMITS, 100).start()
        finally:
            await keeper.stop()

    asyncio.run(work())
