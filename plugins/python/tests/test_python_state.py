"""The tool `python` over calls, episodes and its own life: what stays, what doesn't, what is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from toolrl.types import ToolResult
from toolrl_plugin_python.tool import STATE_LOST, PythonToolset

Cells = Callable[..., list[ToolResult]]


def test_calls_start_anew(cells: Cells) -> None:
    results = cells(
        "x = 1; open('f', 'w')",
        "x",
        "import os; os.listdir()",
        "import json; json.loads = None",
        "import json; json.loads('1')",
    )
    assert "NameError" in results[1].text
    assert results[2].text == "[]"
    assert results[4].text == "1"


def test_chance_differs_from_call_to_call(cells: Cells) -> None:
    code = "import random, uuid; random.random(), uuid.uuid4()"
    results = cells(*[code] * 4)
    assert len({result.text for result in results}) == 4


def test_state_stays_for_an_episode(cells: Cells) -> None:
    results = cells(
        "x = 1; open('f', 'w').write('kept')",
        "x += 1; x",
        "open('f').read()",
        "1 / 0",
        "def double(): return 2 * x",
        "double()",
        "import sys; sys.exit()",
        "import sys; sys.stdout.close()",
        "x",
        persistent=True,
    )
    texts = [result.text for result in results]
    assert texts[:3] == ["4", "2", "'kept'"]
    assert 'File "<cell 4>", line 1' in texts[3]
    assert texts[5:] == ["4", "(no output)", "(no output)", "2"]


def test_lost_state_is_told(cells: Cells) -> None:
    results = cells(
        "x = 1", "while True: pass", "x", "x = 2", "import os; os._exit(1)", "x", timeout=1, persistent=True
    )
    for index in (1, 4):
        assert STATE_LOST in results[index].text
    for index in (2, 5):
        assert "NameError" in results[index].text
        assert STATE_LOST not in results[index].text


def test_threads_stand_still_between_cells(tool: Callable[..., Any], episode: Any) -> None:
    async def work(toolset: PythonToolset) -> tuple[int, int]:
        async with episode(toolset) as tell:
            code = (
                "import threading, time\nn = 0\ndef count():\n    global n\n    while True: n += 1; time.sleep(0.001)\n"
                "threading.Thread(target=count, daemon=True).start()"
            )
            await tell(code)
            first = int((await tell("n")).text)
            await asyncio.sleep(1)
            second = int((await tell("n")).text)
        return first, second

    first, second = tool(work, persistent=True)
    assert second - first < 300


def test_a_persistent_interpreter_is_one_process(cells: Cells) -> None:
    forked, spawned = cells(
        "import os; os.fork()", "import subprocess, sys; subprocess.run([sys.executable])", persistent=True
    )
    assert "PermissionError" in forked.text
    assert "PermissionError" in spawned.text


def test_calls_of_one_turn_share_the_state_in_order(tool: Callable[..., Any], episode: Any) -> None:
    async def work(toolset: PythonToolset) -> list[str]:
        async with episode(toolset) as tell:
            codes = ["x = [0]", *(f"x.append({n}); x" for n in range(1, 5))]
            results = await asyncio.gather(*(tell(code) for code in codes))
        return [result.text for result in results]

    assert tool(work, persistent=True)[-1] == "[0, 1, 2, 3, 4]"


def test_episodes_do_not_see_each_other(tool: Callable[..., Any], episode: Any) -> None:
    async def one(toolset: PythonToolset, number: int) -> str:
        async with episode(toolset) as tell:
            await tell(f"x = {number}; open('f', 'w').write(str(x))")
            await asyncio.sleep(0)
            return (await tell("x, open('f').read()")).text

    async def work(toolset: PythonToolset) -> list[str]:
        return list(await asyncio.gather(*(one(toolset, number) for number in range(6))))

    assert tool(work, persistent=True) == [f"({number}, '{number}')" for number in range(6)]


@pytest.mark.usefixtures("children")
@pytest.mark.parametrize("persistent", [False, True])
def test_a_cancelled_call_leaves_nothing(
    tool: Callable[..., Any], episode: Any, descriptors: Callable[[], set[str]], persistent: bool
) -> None:
    async def work(toolset: PythonToolset) -> None:
        async with episode(toolset) as tell:
            await tell("x = 1")
            running = asyncio.create_task(tell("import time; time.sleep(60)"))
            await asyncio.sleep(0.2)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            again = await tell("7")
            assert again.text.startswith("7")

    before = descriptors()
    tool(work, persistent=persistent, pool_size=0)
    assert descriptors() == before


def test_a_keeper_that_dies_is_replaced(tool: Callable[..., Any], episode: Any) -> None:
    async def work(toolset: PythonToolset) -> list[str]:
        async with episode(toolset) as tell:
            await tell("1")
            assert toolset._pool is not None
            keeper = toolset._pool.keeper
            assert keeper is not None
            assert keeper._process is not None
            keeper._process.kill()
            await asyncio.sleep(0.2)
            return [(await tell("2")).text for _ in range(3)]

    assert tool(work) == ["2", "2", "2"]
