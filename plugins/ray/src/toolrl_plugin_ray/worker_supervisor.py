"""Supervises one rollout worker: starts it, collects its reports, and replaces it when it dies.

A worker counts as dead when its process is gone, or when it hasn't answered for `timeout` seconds; a long wait is
logged before. Its unfinished groups go back to the pool, which deals them to others. Another process takes its place
and gets the weights that are current by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from toolrl.errors import RunStoppedError
from toolrl_plugin_ray.messages import KEPT_LINES, WeightUpdate, WorkerReport

if TYPE_CHECKING:
    from toolrl_plugin_ray.rollout import ActorHandle
    from toolrl_plugin_ray.worker_pool import WorkerPool

POLL_SECONDS = 5.0
WARNING_SECONDS = 30.0
"""Without an answer, before a warning."""
GOODBYE_SECONDS = 30.0
LONGEST_PAUSE = 10.0
"""Seconds between two tries to replace a worker."""

_log = logging.getLogger(__name__)


class WorkerLostError(Exception):
    """A worker's process is gone, or can't be reached."""


@dataclass
class WorkerSupervisor:
    """The pool's side of one worker's place, which one process after another may hold."""

    number: int
    spawn: Callable[[int], ActorHandle]
    owner: WorkerPool
    timeout: float
    restarts: int
    """Deaths in a row before the run stops."""
    state: Literal["starting", "ready", "stopped"] = "starting"
    groups: dict[int, int] = field(default_factory=dict)
    """What it is sampling: by the orders' keys the episodes that haven't given their place back."""
    weights: WeightUpdate | None = None
    """The weights that it samples from."""
    process: Mapping[str, Any] = field(default_factory=dict)
    deaths: int = 0
    """Since it last finished a group."""
    status: Mapping[str, Any] = field(default_factory=dict)
    log: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    handle: ActorHandle | None = None

    @property
    def load(self) -> int:
        """Episodes that were dealt to it and haven't given their place back."""
        return sum(self.groups.values())

    async def serve(self) -> None:
        """Keep a worker running until this is cancelled. Raises RunStoppedError, or an error of the worker's start."""
        while True:
            try:
                await self._start()
                await self._listen()
            except WorkerLostError as error:
                await self._lost(error)

    async def ask(self, method: str, *arguments: Any, patience: float = 0.0) -> Any:
        """Call a method of the worker; the timeout begins after `patience` seconds. Raises WorkerLostError, also where
        no answer comes in time. A worker that a message didn't reach is killed: its state isn't known any more."""
        handle = self.handle
        if handle is None:
            raise WorkerLostError("it is gone")
        try:
            return await self._answer(handle, method, arguments, patience)
        except WorkerLostError:
            self._note_loss(handle)
            raise

    async def sample(self, key: int, order: bytes) -> bytes:
        """A group's episodes, pickled. Raises WorkerLostError, or what left the group."""
        handle = self.handle
        if handle is None or self.state != "ready":  # It was lost since it was picked.
            raise WorkerLostError("it is gone")
        try:
            episodes: bytes = await handle.call("sample", order)
        except WorkerLostError:
            self._note_loss(handle)
            raise
        except asyncio.CancelledError:
            with suppress(WorkerLostError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self.ask("drop", key)
            raise
        self.deaths = 0
        return episodes

    def _note_loss(self, handle: ActorHandle) -> None:
        handle.kill()
        if self.handle is handle and self.state == "ready":
            self.state = "starting"

    async def _answer(self, handle: ActorHandle, method: str, arguments: Sequence[Any], patience: float) -> Any:
        answer = asyncio.ensure_future(handle.call(method, *arguments))
        first = min(WARNING_SECONDS, self.timeout)
        try:
            if not (await asyncio.wait([answer], timeout=first + patience))[0] and first < self.timeout:
                _log.warning(
                    "rollout worker %d hasn't answered %r for %g s; given up after %g s",
                    self.number, method, first, self.timeout,
                )  # fmt: skip
                await asyncio.wait([answer], timeout=self.timeout - first)
            if not answer.done():
                raise WorkerLostError(f"it didn't answer {method!r} for {self.timeout:g} seconds")
            return answer.result()
        finally:
            answer.cancel()

    async def update(self, update: WeightUpdate, part: WeightUpdate | None = None) -> None:
        """Hand weights over, where the worker doesn't have them yet; `part` is how this worker receives them. Raises
        WorkerLostError, EngineError."""
        if self.weights is not update:
            await self.ask("take_weights", part if part is not None else update)
            self.weights = update

    async def close(self) -> None:
        """Ask the worker to take everything down, then end its process."""
        started = self.state == "ready"
        self.state, handle, self.handle = "stopped", self.handle, None
        if handle is None:
            return
        if started:
            with suppress(Exception):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await handle.call("stop")
        handle.kill()

    def last_lines(self) -> str:
        """The last lines of its log, for a message."""
        lines = [f"  | {line}" for line in self.log]
        return "\n".join(["its last log lines:", *lines]) if lines else "it logged nothing"

    async def _start(self) -> None:
        self.weights = None
        self.handle = self.spawn(self.number)
        update = self.owner.current()
        async with self.owner.broadcast.send_to_one(update) as part:
            self.process = await self.ask("start", self.owner.spec(self.number), part)
        self.weights = update
        while (newer := self.owner.current()) is not self.weights:
            async with self.owner.broadcast.send_to_one(newer) as part:
                await self.update(newer, part)
        self.state = "ready"
        _log.info("rollout worker %d is ready (process %d on %s)", self.number, *self.process.values())
        self.owner.ready(self)

    async def _listen(self) -> None:
        while True:
            report: WorkerReport = await self.ask("poll", POLL_SECONDS, patience=POLL_SECONDS)
            self.status = report.status or self.status
            for level, name, text in report.log:
                self.log.append(f"{logging.getLevelName(level)} {text}")
                if level >= logging.WARNING:
                    logging.getLogger(name).log(level, "rollout worker %d: %s", self.number, text)
            self.owner.reported(self, report)

    async def _lost(self, error: WorkerLostError) -> None:
        """Give its groups back, and wait a moment; raises RunStoppedError where it died too often."""
        last_lines, handle = self.last_lines(), self.handle
        if handle is not None:
            handle.kill()
        self.handle, self.process, self.state = None, {}, "starting"
        self.deaths += 1
        self.owner.lost(self, str(error), last_lines)
        if self.deaths > self.restarts:
            raise RunStoppedError(
                f"rollout worker {self.number} died {self.deaths} times in a row, at last: {error}; {last_lines}",
                hint="Mend the cause, or raise cluster.worker_restarts; then go on with --resume.",
            )
        await asyncio.sleep(min(0.5 * 2 ** (self.deaths - 1), LONGEST_PAUSE) if self.deaths > 1 else 0.0)
