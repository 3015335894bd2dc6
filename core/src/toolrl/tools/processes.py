"""Tools that compute, off the interpreter's lock: a pool of worker processes.

A worker runs one call at a time. Where the call is cancelled or runs out of time the worker is killed, with all that it
started, and a new one takes its place when one is needed; where a worker dies, the call that it ran is answered with
that. Workers are started fresh (never forked), see the same `sys.path`, and import a tool's module before the call's
time begins. Arguments and results cross as JSON.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from toolrl.errors import ArgumentsError, ToolError, ToolLimitError, ToolTimeoutError, ToolUnavailableError
from toolrl.tools.rate_limits import ConcurrencyLimit, HeldPermit
from toolrl.tools.results import check_result
from toolrl.tools.subprocess_pool import ProcessCrashError, Worker
from toolrl.tools.threads import POOL
from toolrl.types import Media, ToolResult


class ProcessPool:
    """Up to `limit` workers, by default one for each core that this process may use. Calls beyond wait, first come,
    first served."""

    def __init__(self, limit: int | None = None) -> None:
        self._slots = ConcurrencyLimit(limit or available_cores())
        self._idle: list[Worker] = []

    @property
    def idle(self) -> int:
        """Workers that wait for a call."""
        return len(self._idle)

    async def reserve(self, target: str) -> Reservation:
        """A worker that has imported `module:attribute`; its next call inside of `with` goes there. Raises what the
        import raises, as ProcessCrashError."""
        slot = await self._slots.acquire()
        worker = self._pick(target)
        try:
            if target not in worker.ready:
                _checked(await ask(worker, {"target": target}))
                worker.ready.add(target)
        except BaseException:
            self.give_back(worker, slot)
            raise
        return Reservation(self, worker, slot, target)

    async def call(self, target: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call. Raises ToolError as the tool does, ProcessCrashError for any other exception in its process
        and for its death."""
        reserved = _reserved.get()
        if reserved is None or not reserved.take(target):
            with await self.reserve(target) as own:
                return await _call(own.worker, target, arguments)
        try:
            return await _call(reserved.worker, target, arguments)
        finally:
            reserved.free = True

    def close_idle(self) -> None:
        """End the workers that have nothing to do; the next calls start new ones."""
        idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    def give_back(self, worker: Worker, slot: HeldPermit) -> None:
        """What a reservation held. A worker that was killed isn't used again."""
        if worker.usable:
            self._idle.append(worker)
        else:
            worker.kill()
        slot.release()

    def _pick(self, target: str) -> Worker:
        """An idle worker that has the tool, else any idle one, else a new one."""
        self._idle.sort(key=lambda worker: target in worker.ready)
        while self._idle:
            worker = self._idle.pop()
            if worker.usable:
                return worker
            worker.kill()
        return Worker()


class Reservation:
    """A worker that is kept for one call."""

    def __init__(self, pool: ProcessPool, worker: Worker, slot: HeldPermit, target: str) -> None:
        self._pool = pool
        self._slot = slot
        self._over = False
        self._token: contextvars.Token[Reservation | None] | None = None
        self.worker = worker
        self.free = True
        """False while a call runs in it."""
        self._target = target

    def take(self, target: str) -> bool:
        """Whether a call of this tool may have the worker now: one at a time, none that outlived the reservation."""
        taken = self.free and not self._over and target == self._target
        self.free = self.free and not taken
        return taken

    def __enter__(self) -> Reservation:
        self._token = _reserved.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            _reserved.reset(self._token)
        self._over = True
        self._pool.give_back(self.worker, self._slot)


_reserved: contextvars.ContextVar[Reservation | None] = contextvars.ContextVar("toolrl_reserved_worker", default=None)


async def ask(worker: Worker, request: Mapping[str, Any]) -> dict[str, Any]:
    """A worker's reply. Cancelling this kills the worker: nothing else stops what runs in it."""
    job = POOL.submit(worker.ask, request)
    try:
        return await job
    except asyncio.CancelledError:
        worker.kill()
        raise


async def _call(worker: Worker, target: str, arguments: Mapping[str, Any]) -> ToolResult:
    reply = _checked(await ask(worker, {"target": target, "arguments": dict(arguments)}))
    return _result(reply["result"], target)


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply, or what it says was raised."""
    if "crash" in reply:
        crash = ProcessCrashError(str(reply["crash"]["message"]))
        crash.add_note(str(reply["crash"]["traceback"]))
        raise crash
    if "tool_error" in reply:
        raise _tool_error(**reply["tool_error"])
    return reply


def _tool_error(kind: str, message: str, transient: bool, retry_after: float | None) -> ToolError:
    known = {error.kind: error for error in _ERRORS}
    error = known.get(kind) or type("OtherToolError", (ToolError,), {"kind": str(kind)})
    raised: ToolError = error(str(message), transient=bool(transient), retry_after=retry_after)
    return raised


_ERRORS = (ToolError, ArgumentsError, ToolTimeoutError, ToolLimitError, ToolUnavailableError)


def _result(fields: Mapping[str, Any], target: str) -> ToolResult:
    media = tuple(Media(kind, path) for kind, path in fields.get("media", ()))
    rest = {
        name: fields[name] for name in ("text", "reward", "metrics", "done", "error", "truncated") if name in fields
    }
    return check_result(ToolResult(**{**rest, "media": media}), target)


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


PROCESSES = ProcessPool()
"""Shared by all tools of a process."""
