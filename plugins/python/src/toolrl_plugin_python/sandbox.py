"""Running any program behind walls: `Sandbox.detect()` finds out what the machine offers, `run` runs one program.

    sandbox = Sandbox.detect(readable=[Path("/usr")])
    done = await sandbox.run(["/usr/bin/sort"], stdin=b"b\\na\\n", limits=Limits())
    assert done.stdout == b"a\\nb\\n"

The program sees the paths it was given, read-only, and a scratch folder that is its working folder, its home and gone
afterwards. It has no network. Everything it started ends with it, and with the run, however that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from toolrl_plugin_python import detection, paths
from toolrl_plugin_python.drain import Drain
from toolrl_plugin_python.jail.settings import JobLimits, Settings
from toolrl_plugin_python.link import ENVIRONMENT, Ending, Keeper, KeeperError, Running

Isolation = Literal["auto", "namespaces", "landlock", "none"]
BEGIN_SECONDS = 30.0
"""How long the walls may take to stand, on a machine that is busy."""
_MB = 1 << 20
_ANSWERS_MB = 1


@dataclass(frozen=True, slots=True)
class Limits:
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

    def __init__(self, settings: Settings, found: detection.Found) -> None:
        self.settings = settings
        self._found = found
        self._keeper: Keeper | None = None

    @classmethod
    def detect(cls, isolation: Isolation = "auto", readable: Sequence[Path] = ()) -> Sandbox:
        """The strongest isolation that works here, or the one that is asked for, with these paths readable besides the
        system's shared libraries. It is tried, which takes about a fifth of a second. Raises ConfigError."""
        paths.check_readable(readable)
        shown = dict.fromkeys([*paths.system_libraries(), *map(str, readable)])
        settings, found = detection.detect(isolation, Settings(**detection.OPEN, readable=tuple(shown)))
        return cls(settings, found)

    @property
    def single_process(self) -> bool:
        """True where a program can't start others: nothing here could hold them together."""
        return not self._found.processes

    def describe(self) -> str:
        """One line: which mechanisms isolate."""
        return self._found.text

    async def start(self) -> None:
        """Keep a keeper process until `stop`, so that runs begin in a few milliseconds. Not needed for `run`, which
        starts one by itself, in about a tenth of a second, where none is kept."""
        if self._keeper is None:
            keeper = Keeper(self.settings)
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
        limits: Limits,
        fetch: Sequence[str] = (),
    ) -> Finished:
        """Run one program to its end, with `files` in its working folder and these variables over PATH, LANG, HOME and
        TMPDIR.

        The whole tree of processes is ended on every path, also where this coroutine is cancelled. A program that isn't
        there gives exit code 127 and a line on stderr. Raises ValueError for names of files that leave the scratch
        folder, KeeperError where the program couldn't be isolated.
        """
        job = job_file(argv, files, environment(env), limits, fetch)
        try:
            async with self.keeper() as keeper:
                return await _Run(keeper, limits, bool(fetch)).run(job, stdin)
        finally:
            os.close(job)

    @asynccontextmanager
    async def keeper(self) -> AsyncIterator[Keeper]:
        """The keeper that `start` made; where there is none, or it died, one that ends with the block."""
        keeper, own = self._keeper, None
        if keeper is None or not keeper.alive:
            keeper = own = Keeper(self.settings)
        try:
            if own is not None:
                await own.start()
            yield keeper
        finally:
            if own is not None:
                await own.stop()


class _Run:
    """One program from start to end."""

    def __init__(self, keeper: Keeper, limits: Limits, fetches: bool) -> None:
        self._keeper = keeper
        self._limits = limits
        self._fetches = fetches
        self._drains: list[Drain] = []
        self._job: Running | None = None
        self._flooded = False

    async def run(self, job: int, stdin: bytes) -> Finished:
        try:
            out, err, answers = self._begin(job, stdin)
            begin = time.monotonic()
            timed_out = False
            async with asyncio.timeout(BEGIN_SECONDS):
                await answers.more(0)
            assert self._job is not None
            self._keeper.watch(self._job)
            try:
                async with asyncio.timeout(self._limits.wall_seconds):
                    await self._program_end(answers)
            except TimeoutError:
                timed_out = True
                self._keeper.kill(self._job)
            seconds = time.monotonic() - begin
            async with asyncio.timeout(BEGIN_SECONDS):  # files are handed back; nothing of the program's runs any more
                ending = await asyncio.shield(self._job.ended)
            for drain in self._drains:
                drain.rest()
            return self._finished(ending, out, err, answers, seconds, timed_out)
        finally:
            await self._clean_up()

    def _begin(self, job: int, stdin: bytes) -> tuple[Drain, Drain, Drain]:
        size = self._limits.output_bytes
        theirs: list[int] = []
        try:
            theirs.append(_stdin_file(stdin))
            answers_size = self._limits.scratch_mb * _MB * self._fetches + _ANSWERS_MB * _MB
            for head in (size, size, answers_size):
                ours, other = os.pipe2(os.O_CLOEXEC)
                theirs.append(other)
                self._drains.append(Drain(ours, head, on_flood=self._flood))
            self._job = self._keeper.begin("program", job_limits(self._limits, interpreter=False), [*theirs, job])
        finally:
            for number in theirs:
                os.close(number)
        out, err, answers = self._drains
        return out, err, answers

    async def _program_end(self, answers: Drain) -> None:
        """Until the answer that it has ended, or the job's end."""
        assert self._job is not None
        while answers.parts()[0].count(b"\n") < 2 and not answers.ended and not self._job.ended.done():
            await answers.more(answers.total)

    def _flood(self) -> None:
        self._flooded = True
        if self._job is not None:
            self._keeper.kill(self._job)

    def _finished(
        self, ending: Ending, out: Drain, err: Drain, answers: Drain, seconds: float, timed_out: bool
    ) -> Finished:
        status, measured, files = _read_answers(answers.parts()[0])
        if ending.error:
            raise KeeperError(f"a program can't be isolated: {ending.error}")
        code = os.waitstatus_to_exitcode(status) if status is not None else -int(signal.SIGKILL)
        return Finished(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            stdout=out.parts()[0],
            stderr=err.parts()[0],
            seconds=measured if measured is not None else seconds,
            timed_out=timed_out,
            output_cut=out.cut or err.cut,
            files=files,
            exceeded="output" if self._flooded else ending.reason,
        )

    async def _clean_up(self) -> None:
        for drain in self._drains:
            drain.close()
        if self._job is not None and self._keeper.alive:
            with suppress(KeeperError):
                await self._keeper.end(self._job)


def job_limits(limits: Limits, *, interpreter: bool) -> JobLimits:
    """The part of the limits that the keeper sees to."""
    return JobLimits(
        limits.cpu_seconds, limits.memory_mb, limits.processes, limits.file_mb, limits.scratch_mb, interpreter
    )


def environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables of a program."""
    return {"PATH": ENVIRONMENT["PATH"], "LANG": ENVIRONMENT["LANG"], **env}


def _stdin_file(data: bytes) -> int:
    """A descriptor to read this from."""
    if not data:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    handle = os.memfd_create("stdin", os.MFD_CLOEXEC)
    _write(handle, data)
    try:
        # Opened anew: a descriptor that can only be read.
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def job_file(
    argv: Sequence[str], files: Mapping[str, bytes], env: Mapping[str, str], limits: Limits, fetch: Sequence[str]
) -> int:
    """A descriptor of the job: its length, the job as JSON, the contents of the files one after another."""
    if not argv:
        raise ValueError("argv is empty: expected a program and its arguments")
    for name in (*files, *fetch):
        check_file_name(name)
    if any("\x00" in text for text in (*argv, *env, *env.values())):
        raise ValueError("a NUL character in argv or env")
    job = {
        "argv": list(argv),
        "env": dict(env),
        "files": [(name, len(content)) for name, content in files.items()],
        "fetch": list(fetch),
        "fetch_bytes": limits.scratch_mb * _MB,
    }
    raw = json.dumps(job).encode()
    handle = os.memfd_create("job", os.MFD_CLOEXEC)
    try:
        for part in (struct.pack("!Q", len(raw)), raw, *files.values()):
            _write(handle, part)
    except BaseException:
        os.close(handle)
        raise
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


def _write(handle: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _read_answers(raw: bytes) -> tuple[int | None, float | None, dict[str, bytes]]:
    """Wait status, seconds and files. Total: what is torn is left out."""
    status: int | None = None
    seconds: float | None = None
    files: dict[str, bytes] = {}
    begin = 0
    while (end := raw.find(b"\n", begin)) >= 0:
        answer, begin = json.loads(raw[begin:end]), end + 1
        if "status" in answer:
            status, seconds = int(answer["status"]), float(answer["seconds"])
        elif "file" in answer:
            size = int(answer["size"])
            if size > len(raw) - begin:
                break
            files[answer["file"]] = raw[begin : begin + size]
            begin += size
    return status, seconds, files


__all__ = [
    "BEGIN_SECONDS",
    "Finished",
    "Isolation",
    "KeeperError",
    "Limits",
    "Sandbox",
    "check_file_name",
    "environment",
    "job_file",
    "job_limits",
]
