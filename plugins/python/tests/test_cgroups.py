"""Control groups of jobs, where this machine lets them be made."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl_plugin_python.jail import cgroups
from toolrl_plugin_python.keeper_process import KeeperProcess
from toolrl_plugin_python.options import PythonOptions
from toolrl_plugin_python.tool import PythonToolset, settings_of

_RUN = """
import asyncio, os
from dataclasses import replace
from toolrl_plugin_python.interpreter import Interpreter
from toolrl_plugin_python.jail.settings import JobLimits, NAMESPACES
from toolrl_plugin_python.keeper_process import KeeperProcess
from toolrl_plugin_python.options import PythonOptions
from toolrl_plugin_python.tool import settings_of

async def main():
    keeper = KeeperProcess(settings_of(PythonOptions()))
    keeper.settings = replace(keeper.settings, mode=NAMESPACES)
    await keeper.start()
    await Interpreter(keeper, JobLimits(1, 64, 8, 8, 8, interpreter=True), 100).start()
    print(keeper._process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture
def made(any_isolation: str) -> Callable[[int], list[Path]]:
    """The groups that a keeper of this number has."""
    folders = cgroups.find()
    if not folders:
        pytest.skip("control groups can't be made here")
    return lambda keeper: [path for folder in folders for path in folder.glob(f"toolrl-*-{keeper}-*")]


def test_a_job_has_groups_until_it_ends(tool: Callable[..., Any], made: Callable[[int], list[Path]]) -> None:
    async def work(toolset: PythonToolset) -> int:
        keeper = toolset._pool.keeper._process.pid  # type: ignore[union-attr]
        bounds = [path.read_text() for group in made(keeper) for path in group.glob("memory.[lm]*[xs]")]
        assert any(text.strip().isdigit() and 64 << 20 <= int(text) < 512 << 20 for text in bounds)
        return int(keeper)

    keeper = tool(work, pool_size=1, memory_mb=64, scratch_mb=16)
    assert made(keeper) == []


def test_groups_of_a_killed_run_are_removed_by_the_next(made: Callable[[int], list[Path]]) -> None:
    run = subprocess.Popen([sys.executable, "-c", _RUN], stdout=subprocess.PIPE)
    try:
        assert run.stdout is not None
        keeper = int(run.stdout.readline())
        handle = os.pidfd_open(keeper)
        assert made(keeper)
    finally:
        run.kill()
        run.wait()
        assert run.stdout is not None
        run.stdout.close()

    async def next_run() -> None:
        loop = asyncio.get_running_loop()
        gone = asyncio.Event()
        loop.add_reader(handle, gone.set)
        async with asyncio.timeout(60):
            await gone.wait()
            loop.remove_reader(handle)
            while made(keeper):  # processes of its jobs may still be ending
                other = KeeperProcess(settings_of(PythonOptions()))
                await other.start()
                await other.stop()

    try:
        asyncio.run(next_run())
    finally:
        os.close(handle)
