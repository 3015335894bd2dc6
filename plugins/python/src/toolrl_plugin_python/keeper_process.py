"""The run's side of the keeper: its process, the messages to and from it, and the jobs it has now."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from toolrl_plugin_python.channel import LineChannel
from toolrl_plugin_python.jail import cgroups
from toolrl_plugin_python.jail.disk import remove_tree
from toolrl_plugin_python.jail.settings import NAMESPACES, JobLimits, Settings

_BEGIN = """
import sys
sys.path.insert(0, sys.argv[1])
from toolrl_plugin_python.jail.keeper import main
sys.path.remove(sys.argv[1])
main(int(sys.argv[2]))
"""
_MAX_MESSAGE = 1 << 16
SETTLE_SECONDS = 120.0
"""How long the keeper may take to begin: it imports what is preloaded."""
BEGIN_SECONDS = 30.0
"""How long a job's walls may take to stand, on a machine that is busy."""
STOP_SECONDS = 10.0

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUNBUFFERED": "1",
    "MPLBACKEND": "Agg",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "2",
    "TMPDIR": "/tmp",
}
"""What the keeper and interpreters have as environment; nothing of the run's is handed on."""


class KeeperError(RuntimeError):
    """The keeper can't begin, or has ended: no fault of what it runs."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a job's first process ended."""

    exit_code: int
    """As `os.waitstatus_to_exitcode` gives it: negative for a signal."""
    reason: Literal["", "memory", "cpu", "disk"] = ""
    """The limit for which the keeper ended it: `memory`, `cpu`, `disk`, or none."""
    error: str = ""
    """Why it couldn't begin."""


@dataclass(eq=False)
class Running:
    """A job of the keeper."""

    number: int
    channel: LineChannel
    """Its answers; an interpreter's requests, too."""
    ended: asyncio.Future[Ending]
    paused: asyncio.Future[None] | None = None

    @property
    def alive(self) -> bool:
        """True until it ended, or its keeper did."""
        return not self.ended.done()


def interpreter() -> str:
    """The interpreter without the environment around it, as a path without links."""
    return str(Path(getattr(sys, "_base_executable", None) or sys.executable).resolve())


class KeeperProcess:
    """The run's side of one keeper, on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._running: dict[int, Running] = {}
        self._queue: deque[tuple[bytes, list[int]]] = deque()
        """Messages that wait, with copies of their descriptors."""
        self._count = 0
        self._dead = False
        self._scratch: Path | None = None
        self.groups = False
        """Jobs get control groups of their own."""

    @property
    def alive(self) -> bool:
        """True between start and stop, unless the process died."""
        return self._process is not None and not self._dead

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises KeeperError."""
        self._loop = asyncio.get_running_loop()
        settings = self.settings
        if settings.mode != NAMESPACES:
            self._scratch = Path(tempfile.mkdtemp(prefix="toolrl-scratch-", dir=settings.scratch_base))
            self._scratch.chmod(0o711)  # each folder in it belongs to the user of its job
            settings = replace(settings, scratch_base=str(self._scratch))
        self._settled: asyncio.Future[None] = self._loop.create_future()
        self._start_process(settings)
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._on_message)
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                await asyncio.shield(self._settled)
        except TimeoutError:
            await self.stop()
            raise KeeperError(f"the keeper of isolated programs didn't begin within {SETTLE_SECONDS:g} s") from None
        except BaseException:
            await self.stop()
            raise

    def _start_process(self, settings: Settings) -> None:
        """It dies with the thread that calls this."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        source = str(Path(__file__).parents[1])
        with theirs:
            self._process = subprocess.Popen(
                [interpreter(), "-P", "-s", "-S", "-B", "-c", _BEGIN, source, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                env=ENVIRONMENT,
                cwd="/",
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        with suppress(OSError):  # It has died: the end of what it says tells so.
            self._socket.send(json.dumps(asdict(settings)).encode())

    async def begin(
        self, limits: JobLimits, descriptors: Sequence[int], longest: int, job_file: Sequence[int] = ()
    ) -> Running:
        """Start a job with these as its descriptors 0, 1 and 2, which stay the caller's, and wait until its walls
        stand. A line of its channel has at most `longest` bytes. Raises KeeperError."""
        channel = await LineChannel.open(longest)
        job = Running(self._count, channel, asyncio.get_running_loop().create_future())
        job.ended.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._count += 1
        try:
            if not self.alive:
                raise KeeperError("the keeper of isolated programs isn't there any more")
            self._running[job.number] = job
            message = {"op": "start", "id": job.number, "limits": asdict(limits)}
            self._send(message, [*descriptors, channel.descriptor, *job_file])
            channel.handed_over()
            async with asyncio.timeout(BEGIN_SECONDS):
                if await channel.receive() != b"ready\n":
                    ending = await self.end(job)
                    raise KeeperError(f"code can't be isolated: {ending.error or f'it ended with {ending.exit_code}'}")
        except TimeoutError:
            await self.close(job)
            raise KeeperError(f"no code could be isolated within {BEGIN_SECONDS:g} s") from None
        except BaseException:
            await self.close(job)
            raise
        return job

    def watch(self, job: Running) -> None:
        """Let it go on where it is paused; its use of time and memory counts from now on."""
        self._send({"op": "watch", "id": job.number})

    async def pause(self, job: Running) -> None:
        """Hold an interpreter still; returns early where it has ended."""
        job.paused = self._loop.create_future()
        self._send({"op": "pause", "id": job.number})
        either: list[asyncio.Future[Any]] = [job.paused, job.ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)

    async def end(self, job: Running) -> Ending:
        """End a job with everything it started, if it hasn't ended, and wait for that. Raises KeeperError where the
        keeper is gone."""
        self.kill(job)
        return await asyncio.shield(job.ended)

    async def close(self, job: Running) -> None:
        """End a job, whatever became of it and of the keeper, and its channel."""
        try:
            if job.number in self._running:
                with suppress(KeeperError):
                    await self.end(job)
        finally:
            await job.channel.close()

    def kill(self, job: Running) -> None:
        """End a job without waiting."""
        if not job.ended.done():
            self._send({"op": "end", "id": job.number})

    async def stop(self) -> None:
        """End every job and the process."""
        process, self._process = self._process, None
        try:
            if process is not None:
                if not self._dead:
                    self._lose("it was stopped")
                with suppress(subprocess.TimeoutExpired):
                    await asyncio.to_thread(process.wait, STOP_SECONDS)
        finally:
            if process is not None:
                process.kill()  # where it is still there, its jobs die with it
                process.wait()
                self._errors.close()
                cgroups.remove_stale(cgroups.find())
            if self._scratch is not None:
                remove_tree(self._scratch)  # the keeper removes what is in it, unless it was killed

    def _send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        if self._dead:
            return
        self._queue.append((json.dumps(message).encode(), [os.dup(number) for number in descriptors]))
        if len(self._queue) == 1:
            self._flush()

    def _flush(self) -> None:
        while self._queue:
            message, descriptors = self._queue[0]
            try:
                socket.send_fds(self._socket, [message], descriptors)
            except BlockingIOError:
                self._loop.add_writer(self._socket, self._flush)
                return
            except OSError:
                self._lose("")
                return
            _close_all(self._queue.popleft()[1])
        self._loop.remove_writer(self._socket)

    def _on_message(self) -> None:
        try:
            raw = self._socket.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            raw = b""
        if not raw:
            self._lose("")
            return
        message = json.loads(raw)
        event = message["event"]
        if event == "ended":
            job = self._running.pop(message["id"])
            code = os.waitstatus_to_exitcode(message["status"])
            if not job.ended.done():
                job.ended.set_result(Ending(code, message["reason"], message["error"]))
        elif event == "paused":
            job = self._running[message["id"]]
            if job.paused is not None and not job.paused.done():
                job.paused.set_result(None)
        elif not self._settled.done():
            if event == "settled":
                self.groups = bool(message["groups"])
                self._settled.set_result(None)
            else:
                self._settled.set_exception(KeeperError(f"a module can't be preloaded: {message['error']}"))

    def _lose(self, why: str) -> None:
        """The connection is over, and every job with it."""
        self._dead = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        while self._queue:
            _close_all(self._queue.popleft()[1])
        said = os.pread(self._errors.fileno(), 2000, max(0, os.fstat(self._errors.fileno()).st_size - 2000))
        why = why or f"it died: {said.decode(errors='replace').strip() or 'no reason is known'}"
        error = KeeperError(f"the keeper of isolated programs isn't there any more: {why}")
        for job in self._running.values():
            if not job.ended.done():
                job.ended.set_exception(error)
        if not self._settled.done():
            self._settled.set_exception(error)
        self._settled.exception()  # it may have no other reader
        self._running.clear()


def _close_all(descriptors: Sequence[int]) -> None:
    for number in descriptors:
        with suppress(OSError):
            os.close(number)
