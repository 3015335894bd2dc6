"""A program in the sandbox that is talked to line by line, over its standard input and output.

    async with conversation(sandbox, ["/usr/bin/cat"], limits=ProgramLimits()) as program:
        await program.send(b"a line\\n")
        assert await program.receive() == b"a line\\n"

All that it says is hostile bytes: a line has a largest length, and one that is longer ends the conversation. What it
writes on standard error is dropped. It is gone, with all it started, when the block is left.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from toolrl_plugin_python.channel import LineChannel
from toolrl_plugin_python.keeper_process import KeeperProcess, Running
from toolrl_plugin_python.sandbox import ProgramLimits, Sandbox, environment, job_file, raise_error, started

LONGEST_LINE = 8 << 20


class LineProgram:
    """One program that runs. Made by `conversation`."""

    def __init__(self, keeper: KeeperProcess, running: Running, channel: LineChannel) -> None:
        self._keeper = keeper
        self._running = running
        self._channel = channel

    async def send(self, line: bytes) -> None:
        """Hand it a line; where it doesn't read, this waits. One that is gone reads nothing, which is no error."""
        await self._channel.send(line)

    async def receive(self) -> bytes | None:
        """Its next line with the end of the line; None where it hung up, or said too much."""
        return await self._channel.receive() or None

    async def end(self) -> str:
        """End it: the limit for which it had been ended before, `memory`, `cpu`, `disk`, `processes`, or none. Raises
        KeeperError where it couldn't be isolated."""
        return raise_error(await self._keeper.end(self._running)).reason


@asynccontextmanager
async def conversation(
    sandbox: Sandbox,
    argv: Sequence[str],
    *,
    files: Mapping[str, bytes] = {},
    env: Mapping[str, str] = {},
    limits: ProgramLimits,
) -> AsyncIterator[LineProgram]:
    """Start a program, with `files` in its working folder. `limits.wall_seconds` is the caller's to keep. Raises
    KeeperError where it can't be isolated."""
    async with AsyncExitStack() as stack:
        job = job_file(argv, files, environment(env), limits, ())
        stack.callback(os.close, job)
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        stack.callback(os.close, nothing)
        keeper = await stack.enter_async_context(sandbox.keeper())
        channel = await LineChannel.open(LONGEST_LINE)
        stack.push_async_callback(channel.close)
        descriptors = [channel.descriptor, channel.descriptor, nothing]
        running, _ = await stack.enter_async_context(started(keeper, job, limits, descriptors))
        channel.handed_over()
        yield LineProgram(keeper, running, channel)
