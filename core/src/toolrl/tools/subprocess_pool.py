"""Worker processes for libraries and tools that can't be stopped, or aren't trusted, in this process. For plugins, too.

- `WorkerProcess` is one process, which answers requests by the function that `build(*arguments)` of a module returns.
- `ask` sends a request from the event loop.

A request goes out with a random nonce, which its reply has to carry. A worker that writes anything else (before a
request, after its reply, a frame of another request, no frame at all) is ended, and the request fails as a crash: no
request ever gets the reply of another. The nonce protects against accidents, such as a forked child that also replies.
It can't protect a reply against the code that makes it: that runs in the worker with the worker's rights.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from toolrl.tools import subprocess_main as script
from toolrl.tools.threads import POOL

_CHUNK = 1 << 20
LARGEST_REPLY = 1 << 28
"""Bytes. What runs in a worker must not be able to fill this process's memory."""
_CHECK_SECONDS = 1.0
"""How often a silent worker is checked: something that it started may hold its output open after it died."""

TOOLS = "toolrl.tools.function"
"""The module whose process answers calls of tools."""


class ProcessCrashError(Exception):
    """A tool that raised in its process, or took its process with it. The text is the original one."""


class WorkerProcess:
    """One process, started with its first request. `ask` blocks and is called from a thread, `kill` from anywhere.

    It answers calls of tools, with this process's `sys.path`, or what the `build(*arguments)` of a module answers. The
    options are those of `subprocess.Popen`.
    """

    def __init__(self, module: str = "", *arguments: str, **options: Any) -> None:
        paths = None if module else [path for path in sys.path if isinstance(path, str)]
        command = [sys.executable, "-P", str(Path(script.__file__)), json.dumps(paths)]
        command += [module or TOOLS, *arguments]
        self._start: Callable[[], subprocess.Popen[bytes]] = lambda: subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, **options
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._killed = False
        self.busy = False
        """Whether a request is on its way."""
        self.ready: set[str] = set()
        """Targets that it has imported."""

    @property
    def pid(self) -> int | None:
        """Of its process; None before it was started."""
        return self._process.pid if self._process is not None else None

    @property
    def usable(self) -> bool:
        """False after it was killed, has died, or wrote what no request asked for."""
        with self._lock:
            if self._killed or self._process is None:
                return not self._killed
            return self._process.poll() is None and (self.busy or not _has_written(self._process))

    def ask(self, request: Mapping[str, Any], seconds: float | None = None) -> dict[str, Any]:
        """Its reply. Raises ProcessCrashError where it gives none, or none within so many seconds, and is ended."""
        nonce, frame = secrets.token_bytes(16), json.dumps(request).encode()
        process = self._begin()
        watchdog = threading.Timer(seconds or 0, self.kill)
        watchdog.daemon = True
        reply: dict[str, Any] | None = None
        status: int | None = None
        try:
            if seconds is not None:
                watchdog.start()
            if _has_written(process):
                raise ProcessCrashError("its process wrote what no request asked for")
            with suppress(BrokenPipeError, ConnectionResetError):
                assert process.stdin is not None
                process.stdin.write(script.HEADER.pack(len(frame), nonce) + frame)
                process.stdin.flush()
                reply = _read_reply(process, nonce)
            if reply is None:
                # It closes its pipes before it ends: killed right now, it couldn't report how it ended.
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_CHECK_SECONDS)
        finally:
            watchdog.cancel()
            status = self._finish(dead=reply is None)
        if reply is None:
            raise ProcessCrashError(f"its process ended with status {status}")
        return reply

    def kill(self) -> None:
        """End the process and all that it started in its group."""
        with self._lock:
            reaped = self._killed and self._process is not None and self._process.returncode is not None
            self._killed = True
            if self._process is None or reaped:  # Reaped, its number may be another's.
                return
            _kill_group(self._process)
            if not self.busy:
                _reap(self._process)

    def _begin(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._killed:
                raise ProcessCrashError("its process was killed before the call")
            if self._process is None:
                self._process = self._start()
            self.busy = True
            return self._process

    def _finish(self, *, dead: bool) -> int | None:
        """After a request; the exit status of a process that is no more."""
        with self._lock:
            self.busy = False
            if not dead and not self._killed:
                return None
            self._killed = True
            assert self._process is not None
            _kill_group(self._process)
            return _reap(self._process)


async def ask(worker: WorkerProcess, request: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's reply. Cancelling this kills the worker: nothing else stops what runs in it."""
    job = POOL.submit(worker.ask, request)
    try:
        return await job
    except asyncio.CancelledError:
        worker.kill()
        raise


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and all that it started in its group."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _reap(process: subprocess.Popen[bytes]) -> int:
    status = process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
    return status


def _has_written(process: subprocess.Popen[bytes], seconds: float = 0) -> bool:
    """Whether there is something to read; the end of its output counts only where it is waited for."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout.fileno(), select.POLLIN)
    events = poll.poll(seconds * 1000)
    return bool(events) and (seconds > 0 or bool(events[0][1] & select.POLLIN))


def _read_reply(process: subprocess.Popen[bytes], nonce: bytes) -> dict[str, Any] | None:
    """Its reply, or None where it ended first. Raises ProcessCrashError for anything else."""
    header = _read(process, script.HEADER.size)
    if header is None:
        return None
    length, echoed = script.HEADER.unpack(header)
    if echoed != nonce:
        raise ProcessCrashError("its process wrote what no request asked for")
    if length > LARGEST_REPLY:
        raise ProcessCrashError(f"it returned {length} bytes, more than the {LARGEST_REPLY} that are read")
    body = _read(process, length)
    if body is None:
        return None
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        reply = None
    if not isinstance(reply, dict):
        raise ProcessCrashError("its process replied with what is no JSON object")
    return reply


def _read(process: subprocess.Popen[bytes], count: int) -> bytes | None:
    assert process.stdout is not None
    got = bytearray()
    while len(got) < count:
        if not _has_written(process, _CHECK_SECONDS):
            if process.poll() is not None:
                return None
            continue
        chunk = os.read(process.stdout.fileno(), min(count - len(got), _CHUNK))
        if not chunk:
            return None
        got += chunk
    return bytes(got)


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
