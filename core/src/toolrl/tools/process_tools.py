"""Tools that compute, off the interpreter's lock: the pool of worker processes behind `@tool(process=True)`.

A worker runs one call at a time. Where the call is cancelled or runs out of time the worker is killed, with all that it
started, and a new one takes its place when one is needed; where a worker dies, its call is answered with that. Workers
are started fresh (never forked), see the same `sys.path`, and import a tool's module before the call's time begins.
Arguments and results cross as JSON.
"""

from __future__ import annotations

import contextvars
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from toolrl.errors import ArgumentsError, ToolError, ToolLimitError, ToolTimeoutError, ToolUnavailableError
from toolrl.tools.rate_limits import ConcurrencyLimit
from toolrl.tools.results import check_result
from toolrl.tools.subprocess_pool import ProcessCrashError, WorkerProcess, ask, available_cores
from toolrl.types import Media, ToolResult


class ProcessPool:
    """Up to `limit` workers, by default one for each core that this process may use. Calls beyond wait, first come,
    first served."""

    def __init__(self, limit: int | None = None) -> None:
        self._slots = ConcurrencyLimit(limit or available_cores())
        self._idle: list[WorkerProcess] = []

    @property
    def idle(self) -> int:
        """Workers that wait for a call."""
        return len(self._idle)

    @asynccontextmanager
    async def reserve(self, target: str) -> AsyncIterator[WorkerProcess]:
        """A worker that has imported `module:attribute`, for the first call inside of it. Raises what the import
        raises, as ProcessCrashError."""
        slot = await self._slots.acquire()
        worker = self._pick(target)
        reserved = [worker]
        try:
            if target not in worker.ready:
                _checked(await ask(worker, {"target": target}))
                worker.ready.add(target)
            token = _reserved.set(reserved)
            try:
                yield worker
            finally:
                _reserved.reset(token)
                reserved.clear()  # A task that outlives this has its own copy of the context.
        finally:
            if worker.usable:
                self._idle.append(worker)
            else:
                worker.kill()
            slot.release()

    async def call(self, target: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Answer one call. Raises ToolError as the tool does, ProcessCrashError for any other exception in its process
        and for its death."""
        if reserved := _reserved.get():
            return await _call(reserved.pop(), target, arguments)
        async with self.reserve(target) as worker:
            return await _call(worker, target, arguments)

    def close_idle(self) -> None:
        """End the workers that have nothing to do; the next calls start new ones."""
        idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    def _pick(self, target: str) -> WorkerProcess:
        """An idle worker that has the tool, else any idle one, else a new one."""
        self._idle.sort(key=lambda worker: target in worker.ready)
        while self._idle:
            worker = self._idle.pop()
            if worker.usable:
                return worker
            worker.kill()
        return WorkerProcess()


_reserved: contextvars.ContextVar[list[WorkerProcess] | None] = contextvars.ContextVar(
    "toolrl_reserved_worker", default=None
)


async def _call(worker: WorkerProcess, target: str, arguments: Mapping[str, Any]) -> ToolResult:
    reply = _checked(await ask(worker, {"target": target, "arguments": dict(arguments)}))
    fields = dict(reply["result"])
    media = tuple(Media(kind, path) for kind, path in fields.pop("media", ()))
    return check_result(ToolResult(**fields, media=media), target)


def _checked(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply. Raises the error that it reports."""
    if "crash" in reply:
        crash = ProcessCrashError(str(reply["crash"]["message"]))
        crash.add_note(str(reply["crash"]["traceback"]))
        raise crash
    if "tool_error" in reply:
        raise _tool_error(**reply["tool_error"])
    return reply


def _tool_error(kind: str, message: str, transient: bool, retry_after: float | None) -> ToolError:
    known = {it.kind: it for it in (ToolError, ArgumentsError, ToolTimeoutError, ToolLimitError, ToolUnavailableError)}
    error = known.get(kind) or type("OtherToolError", (ToolError,), {"kind": kind})
    raised: ToolError = error(message, transient=transient, retry_after=retry_after)
    return raised


PROCESSES = ProcessPool()
"""Shared by all tools of a process."""
