"""Programs in the sandbox that are talked to: real processes, under each isolation that works here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from toolrl_plugin_python import paths
from toolrl_plugin_python.conversation import LONGEST_LINE, LineProgram, conversation
from toolrl_plugin_python.sandbox import ProgramLimits, Sandbox

LIMITS = ProgramLimits(cpu_seconds=10, memory_mb=200)
ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


def talk(sandbox: Sandbox, code: str, work: Callable[[LineProgram], Awaitable[Any]], **more: Any) -> Any:
    """What `work` gives with a Python program."""

    async def run() -> Any:
        argv = [paths.interpreter(), "-I", "-S", "-c", code]
        async with conversation(sandbox, argv, **{"limits": LIMITS, **more}) as program:
            return await work(program)

    return asyncio.run(run())


def test_lines_go_both_ways(sandbox: Sandbox) -> None:
    async def work(program: LineProgram) -> list[bytes | None]:
        answers = []
        for line in (b"one\n", b"two\n"):
            await program.send(line)
            answers.append(await program.receive())
        return answers

    assert talk(sandbox, ECHO, work) == [b"ONE\n", b"TWO\n"]


def test_it_has_its_files_and_variables(sandbox: Sandbox) -> None:
    code = "import os; print(open('in/a').read(), os.environ['B'], flush=True); input()"

    async def work(program: LineProgram) -> bytes | None:
        return await program.receive()

    assert talk(sandbox, code, work, files={"in/a": b"file"}, env={"B": "variable"}) == b"file variable\n"


def test_one_that_ends_says_nothing_more(sandbox: Sandbox) -> None:
    async def work(program: LineProgram) -> tuple[bytes | None, str]:
        said = await program.receive()
        await program.send(b"x" * 1_000_000)
        return said, await program.end()

    assert talk(sandbox, "print('half', end='')", work) == (None, "")


def test_a_line_without_end_ends_the_conversation(sandbox: Sandbox) -> None:
    async def work(program: LineProgram) -> bytes | None:
        return await program.receive()

    assert talk(sandbox, f"print('x' * {4 * LONGEST_LINE})", work) is None


def test_the_limit_that_ended_it_is_told(sandbox: Sandbox) -> None:
    async def work(program: LineProgram) -> str:
        assert await program.receive() is None
        return await program.end()

    assert talk(sandbox, "while True: pass", work, limits=ProgramLimits(cpu_seconds=1, memory_mb=100)) == "cpu"


def test_leaving_the_block_ends_it(sandbox: Sandbox, descriptors: Callable[[], set[str]]) -> None:
    async def work(program: LineProgram) -> None:
        await program.send(b"x\n")
        assert await program.receive() == b"X\n"
        raise LookupError

    def leave() -> None:
        with pytest.raises(LookupError):
            talk(sandbox, ECHO, work)

    leave()
    before = {entry.partition(" ")[2].partition(":")[0] for entry in descriptors()}
    leave()
    assert {entry.partition(" ")[2].partition(":")[0] for entry in descriptors()} <= before
