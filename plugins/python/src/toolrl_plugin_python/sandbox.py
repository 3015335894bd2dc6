"""Running any program behind walls: `Sandbox.detect()` finds out what the machine offers, `run` runs one program.

    sandbox = Sandbox.detect(readable=[Path("/usr")])
    done = await sandbox.run(["/usr/bin/sort"], stdin=b"b\\na\\n", limits=ProgramLimits())
    assert done.stdout == b"a\\nb\\n"

The program sees the paths it was given, read-only, and a scratch folder that is its working folder, its home and gone
afterwards. It has no network. Everything it started ends with it, and with the run, however that ends.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from toolrl_plugin_python import detection, paths
from toolrl_plugin_python.channel import Drain, LineChannel
from toolrl_plugin_python.jail.settings import JobLimits, Settings
from toolrl_plugin_python.keeper_process import BEGIN_SECONDS, ENVIRONMENT, KeeperError, KeeperProcess

Isolation = Literal["auto", "namespaces", "landlock", "none"]
_MB = 1 << 20
_LONGEST_ANSWER = 1 << 16


@dataclass(frozen=True, slots=True)
class ProgramLimits:
    """What one run of a program may use."""

    wall_seconds: float = 10.0
    """From its start to its end."""
    cpu_seconds: float = 10.0
    """Of all its processes together."""
    memory_mb: int = 512
    """Of all its processes together; files in the scratch folder count extra."""
    processes: int = 32
    """Processes and threads at once."""
    file_mb: int = 64
    """Size of one file."""
    scratch_mb: int = 128
    """Size of everything in the scratch folder."""
    output_bytes: int = 1 << 20
    """What is kept of stdout and of stderr, each. Very much more ends the program."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended and what it left."""

    exit_code: int | None
    """None where a signal ended it."""
    signal: int | None
    """The signal's number, or None."""
    stdout: bytes
    stderr: bytes
    seconds: float
    """From the program's start to its end."""
    timed_out: bool = False
    """It took longer than `wall_seconds` and was ended."""
    output_cut: bool = False
    """More was written than was kept."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Those of `fetch` that are regular files and fit into the scratch folder's size together."""
    exceeded: str = ""
    """The limit for which it was ended: `memory`, `cpu`, `disk`, `output`, or none that is known."""


class Sandbox:
    """A way of isolation that was tried on this machine. Safe to share; runs don't see each other."""

    def __init__(self, settings: Settings, found: str) -> None:
        self.settings = settings
        self._found = found
        self._keeper: KeeperProcess | None = None

    @classmethod
    def detect(cls, isolation: Isolation = "auto", readable: Sequence[Path] = ()) -> Sandbox:
        """The strongest isolation that works here, or the one that is asked for, with these paths readable besides the
        system's shared libraries. It is tried, which takes about a fifth of a second. Raises ConfigError."""
        paths.check_readable(readable)
        shown = dict.fromkeys([*paths.system_libraries(), *map(str, readable)])
        settings, found = detection.detect(isolation, Settings(tuple(shown), tuple(paths.search_path())))
        return cls(settings, found)

    def describe(self) -> str:
        """One line: which mechanisms isolate."""
        return self._found

    async def start(self) -> None:
        """Keep a keeper process until `stop`, so that runs begin in a few milliseconds. Not needed for `run`, which
        starts one by itself, in about a tenth of a second, where none is kept."""
        if self._keeper is None:
            keeper = KeeperProcess(self.settings)
            await keeper.start()
            self._keeper = keeper

    async def stop(self) -> None:
        """End the keeper that `start` made, with every run that it still has."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.stop()

    async def run(
        self,
        argv: Sequence[str],
        *,
        files: Mapping[str, bytes] = {},
        stdin: bytes = b"",
        env: Mapping[str, str] = {},
        limits: ProgramLimits,
        fetch: Sequence[str] = (),
    ) -> Finished:
        """Run one program to its end, with `files` in its working folder and these variables over PATH, LANG, HOME and
        TMPDIR.

        The whole tree of processes is ended on every path, also where this coroutine is cancelled. A program that isn't
        there gives exit code 127 and a line on stderr. Raises ValueError for names of files that leave the scratch
        folder, KeeperError where the program couldn't be isolated.
        """
        job = _job_file(argv, files, env, limits, fetch)
        try:
            async with self.keeper() as keeper:
                return await _run(keeper, job, limits, stdin)
        finally:
            os.close(job)

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[KeeperProcess]:
        """The keeper that `start` made; where there is none, or it died, one that ends with the block."""
        if self._keeper is not None and self._keeper.alive:
            yield self._keeper
            return
        keeper = KeeperProcess(self.settings)
        await keeper.start()
        try:
            yield keeper
        finally:
            await keeper.stop()


async def _run(keeper: KeeperProcess, job_file: int, limits: ProgramLimits, stdin: bytes) -> Finished:
    """One program from start to end."""
    exceeded, job, drains = "", None, []
    theirs = [_stdin_file(stdin)]

    def flooded() -> None:
        nonlocal exceeded
        exceeded = "output"
        if job is not None:
            keeper.kill(job)

    async with AsyncExitStack() as stack:
        try:
            for _ in range(2):
                ours, other = os.pipe2(os.O_CLOEXEC)
                theirs.append(other)
                drains.append(Drain(ours, limits.output_bytes, on_flood=flooded))
                stack.callback(drains[-1].close)
            job = await keeper.begin(_kept(limits), theirs, _LONGEST_ANSWER, [job_file])
            keeper.watch(job)
            stack.push_async_callback(keeper.close, job)
        finally:
            for number in theirs:
                os.close(number)
        begin = time.monotonic()
        answer, timed_out = None, False
        try:
            async with asyncio.timeout(limits.wall_seconds):
                answer = await job.channel.receive()
        except TimeoutError:
            timed_out = True
            keeper.kill(job)
        seconds = time.monotonic() - begin
        async with asyncio.timeout(BEGIN_SECONDS):  # nothing of the program's runs any more
            files = await _files(job.channel) if answer else {}
            ending = await asyncio.shield(job.ended)
        if ending.error:
            raise KeeperError(f"code can't be isolated: {ending.error}")
        for drain in drains:
            drain.rest()
        end: dict[str, Any] = json.loads(answer) if answer else {"status": signal.SIGKILL, "seconds": seconds}
        code = os.waitstatus_to_exitcode(end["status"])
        out, err = drains
        return Finished(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=out.parts()[0],
            stderr=err.parts()[0],
            seconds=end["seconds"],
            timed_out=timed_out,
            output_cut=bool(out.left_out or err.left_out),
            files=files,
            exceeded=exceeded or ending.reason,
        )


def _kept(limits: ProgramLimits) -> JobLimits:
    """What the keeper holds a program to."""
    return JobLimits(
        limits.cpu_seconds, limits.memory_mb, limits.processes, limits.file_mb, limits.scratch_mb, interpreter=False
    )


async def _files(answers: LineChannel) -> dict[str, bytes]:
    """The files that are handed back, up to the end, or to one that is torn."""
    files: dict[str, bytes] = {}
    while line := await answers.receive():
        header = json.loads(line)
        content = await answers.receive_bytes(int(header["size"]))
        if content is None:
            break
        files[header["file"]] = content
    return files


def _stdin_file(data: bytes) -> int:
    """A descriptor to read this from."""
    with open(os.memfd_create("stdin", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), "wb") as file:  # noqa: PTH123
        file.write(data)
        file.flush()
        _seal(file.fileno())
        # Opened anew: a descriptor that can only be read.
        return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_CLOEXEC)


def _seal(handle: int) -> None:
    """End all writing to a memfd: a program may open it anew by /proc, and use it as memory that nothing counts."""
    fcntl.fcntl(handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    os.fchmod(handle, 0o444)


def _job_file(
    argv: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str], limits: ProgramLimits, fetch: Sequence[str]
) -> int:
    """A descriptor of the job: a line of JSON, then the contents of the files one after another."""
    if not argv:
        raise ValueError("argv is empty: expected a program and its arguments")
    for name in (*files, *fetch):
        check_file_name(name)
    if any("\x00" in text for text in (*argv, *env, *env.values())):
        raise ValueError("a NUL character in argv or env")
    job = {
        "argv": list(argv),
        "env": {name: ENVIRONMENT[name] for name in ("PATH", "LANG")} | dict(env),
        "files": [(name, len(content)) for name, content in files.items()],
        "fetch": list(fetch),
        "fetch_bytes": limits.scratch_mb * _MB,
    }
    handle = os.memfd_create("job", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(handle, "wb", closefd=False) as file:
        file.writelines([json.dumps(job).encode() + b"\n", *files.values()])
    _seal(handle)
    return handle


def check_file_name(name: str) -> None:
    """Raises ValueError for a name that isn't a path below the working folder."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or not path.parts or "\x00" in name:
        raise ValueError(f"file name {name!r:.200}: expected a relative path below the working folder")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise ValueError(f"file name {name!r:.200}: it holds half a character") from None
