"""Groups of episodes from many workers: dealt to the least loaded, each group whole, and never more than there is room.

The pool stands in the place of the in-process `Runner`. A worker may have `concurrency` episodes in flight; it is dealt
another group as soon as one of these places is free, so that its engine is kept busy and yet holds back at most one
group that others could start sooner. What isn't dealt waits here, in the order in which it was asked for; who asks
(`toolrl.loop.supply`) bounds how much that is.

When a worker dies its unfinished groups go back to the front of the queue and start again from the beginning, their
seeds being the same. A group counts when it is here as a whole, so none is counted twice and none is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any

from toolrl.cluster.handover import Courier, for_one, hand_over
from toolrl.cluster.line import Handle, Job, Line, WorkerLostError
from toolrl.cluster.losses import Losses
from toolrl.cluster.messages import GroupOrder, Handoff, Report, WorkerSpec, unpack_error, unpack_group
from toolrl.errors import RunStoppedError, ToolrlError
from toolrl.protocols import WeightSource
from toolrl.rollout.environment import Limits
from toolrl.rollout.source import Oversight
from toolrl.tools.restarts import RestartCount
from toolrl.types import Group, Task

_log = logging.getLogger(__name__)


class WorkerPool:
    """A `GroupSource`, and `TakesWeights`. `start` and `stop` it on one event loop."""

    def __init__(
        self,
        spawn: Callable[[int], Handle],
        spec: Callable[[int], WorkerSpec],
        courier: Courier,
        oversight: Oversight,
        *,
        workers: int,
        concurrency: int,
        timeout: float = 600.0,
        restarts: int = 3,
        reason_of_wait: Callable[[str], str] = lambda method: "",
    ) -> None:
        """`spawn(number)` begins a worker's process and returns at once."""
        self.spec = spec
        self.reason_of_wait = reason_of_wait
        self._courier = courier
        self._oversight = oversight
        self._concurrency = concurrency
        self._restarts = restarts
        self._lines = [Line(number, spawn, self, timeout, restarts) for number in range(workers)]
        self._serving: list[asyncio.Task[None]] = []
        self._helping: set[asyncio.Task[None]] = set()
        self._waiting: deque[Job] = deque()
        self._keys = itertools.count()
        self._handoff: Handoff | None = None
        self._broken: BaseException | None = None
        self._all_ready: asyncio.Future[None] | None = None
        self._losses = Losses()
        self._seen_restarts = RestartCount()

    # Start, stop.

    async def start(self, weights: WeightSource, version: int) -> None:
        """Start all workers with these weights; returns when all are ready. Raises what one of them raised."""
        self._handoff = await self._courier.publish(weights, version)
        self._all_ready = asyncio.get_running_loop().create_future()
        for line in self._lines:
            task = asyncio.create_task(line.serve())
            task.add_done_callback(self._ended)
            self._serving.append(task)
        await self._all_ready

    async def stop(self) -> None:
        """Stop all workers; what is in flight is cancelled."""
        for task in [*self._serving, *self._helping]:
            task.cancel()
        await asyncio.gather(*self._serving, *self._helping, return_exceptions=True)
        await asyncio.gather(*(line.close() for line in self._lines))
        jobs = [*self._waiting, *(job for line in self._lines for job in line.jobs.values())]
        self._waiting.clear()
        for job in jobs:
            job.result.cancel()
        self._courier.close()

    # For who asks for groups.

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """See GroupSource. Observers hear of a group's episodes when the group is here as a whole."""

        async def one(task: Task, number: int) -> Group:
            group = await self._group(task, number, group_size, limits, round_id, training)
            self.tell([group])
            return group

        try:
            async with asyncio.TaskGroup() as scope:
                going = [scope.create_task(one(task, number)) for number, task in enumerate(tasks)]
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None
        groups = [task.result() for task in going]
        self.check(groups)
        return groups

    async def group(
        self, task: Task, number: int, group_size: int, limits: Limits, *, round_id: str, gate: asyncio.Semaphore
    ) -> Group:
        """See GroupSource."""
        return await self._group(task, number, group_size, limits, round_id, True)

    def gate(self) -> asyncio.Semaphore:
        """A bound like the workers' own, which is what counts."""
        return asyncio.Semaphore(self._concurrency * len(self._lines))

    def tell(self, groups: Iterable[Group]) -> None:
        """See GroupSource."""
        self._oversight.tell(groups)

    def check(self, groups: Sequence[Group]) -> None:
        """See GroupSource."""
        self._oversight.check(groups)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Hand weights to all workers; one that is being replaced starts with them. Raises EngineError where they don't
        arrive as they were sent."""
        self._handoff = await self._courier.publish(weights, version)
        await hand_over(self._courier, self._handoff, [line for line in self._lines if line.state == "ready"])
        self._check_broken()

    def metrics(self) -> dict[str, float]:
        """Since this was last asked: what was lost, and how many workers there are now."""
        ready = sum(line.state == "ready" for line in self._lines)
        return {**self._losses.metrics(ready), **self._seen_restarts.metrics()}

    def status(self) -> dict[str, Any]:
        """What each worker does now, and what waits here."""
        return {
            "waiting_groups": len(self._waiting),
            "restarted": self._seen_restarts.totals(),
            "workers": [_status(line) for line in self._lines],
        }

    async def _group(
        self, task: Task, number: int, group_size: int, limits: Limits, round_id: str, training: bool
    ) -> Group:
        self._check_broken()
        order = GroupOrder(next(self._keys), task, number, group_size, limits, round_id, training)
        job = Job(order, asyncio.get_running_loop().create_future(), group_size)
        self._waiting.append(job)
        self._deal()
        try:
            return await job.result
        finally:
            if not job.result.done() or job.result.cancelled():
                self._drop(job)

    # Dealing.

    def _deal(self) -> None:
        """Hand out what waits, while somebody has room."""
        dealt: dict[int, list[Job]] = {}
        while self._waiting:
            free = [line for line in self._lines if line.state == "ready" and line.load < self._concurrency]
            if not free:
                break
            line = min(free, key=lambda it: it.load)
            job = self._waiting.popleft()
            if job.result.done():  # Who asked has given up.
                continue
            line.jobs[job.order.key] = job
            line.load += job.left
            dealt.setdefault(line.number, []).append(job)
        for number, jobs in dealt.items():
            sent = self._help(self._send(self._lines[number], jobs))
            for job in jobs:
                job.sent = sent

    async def _send(self, line: Line, jobs: Sequence[Job]) -> None:
        try:
            await line.ask("deal", [job.order for job in jobs])
        except WorkerLostError:
            pass  # Its place's own task hears of it too.
        except Exception as error:  # noqa: BLE001 - a task that doesn't pickle, for one
            for job in jobs:
                if self._take(line, job.order.key) is not None and not job.result.done():
                    job.result.set_exception(_unsent(job, error))
            self._deal()

    def _drop(self, job: Job) -> None:
        """Nobody waits for it any more."""
        if job in self._waiting:
            self._waiting.remove(job)
        for line in self._lines:
            if self._take(line, job.order.key) is not None and line.state == "ready":
                self._help(self._forget(line, job))
                self._deal()

    async def _forget(self, line: Line, job: Job) -> None:
        if job.sent is not None:  # Else the order might come after this.
            await asyncio.wait([job.sent])
        with suppress(WorkerLostError):
            await line.ask("drop", [job.order.key])

    def _take(self, line: Line, key: int) -> Job | None:
        """Take a group off a worker's list; its places are free."""
        job = line.jobs.pop(key, None)
        if job is not None:
            line.load -= job.left
        return job

    def _help(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._helping.add(task)
        task.add_done_callback(self._helping.discard)
        return task

    # What the lines tell.

    def current(self) -> Handoff:
        """The weights to sample from."""
        assert self._handoff is not None, "start() was awaited"
        return self._handoff

    def for_one(self, handoff: Handoff, member: Any) -> AbstractAsyncContextManager[Handoff]:
        """See Owner."""
        return for_one(self._courier, handoff, member)

    def ready(self, line: Line) -> None:
        """A worker can be dealt to."""
        waits = self._all_ready
        if waits is not None and not waits.done() and all(it.state == "ready" for it in self._lines):
            waits.set_result(None)
        self._deal()

    def reported(self, line: Line, report: Report) -> None:
        """Take in what a worker has done, and give it more."""
        self._seen_restarts.hear((report.status or {}).get("restarted", ()))
        for key, count in report.ended.items():
            job = line.jobs.get(key)
            if job is not None:
                count = min(count, job.left)
                job.left -= count
                line.load -= count
        for key, data in report.done:
            if (job := self._take(line, key)) is not None and not job.result.done():
                _settle(job, data)
        for key, data in report.failed:
            if (job := self._take(line, key)) is not None and not job.result.done():
                job.result.set_exception(unpack_error(data))
        self._deal()

    def lost(self, line: Line, reason: str, said: str) -> None:
        """Put what a dead worker was sampling to the front of the queue."""
        jobs = [job for job in line.jobs.values() if not job.result.done()]
        line.jobs.clear()
        line.load = 0
        self._losses.workers += 1
        self._losses.groups += len(jobs)
        _log.warning(
            "rollout worker %d died (%s); %d of its groups start again on others. %s",
            line.number, reason, len(jobs), said,
        )  # fmt: skip
        for job in sorted(jobs, key=lambda it: it.order.key, reverse=True):
            job.left = job.order.group_size
            job.deaths += 1
            if job.deaths > self._restarts:
                job.result.set_exception(_deadly(job, reason, said))
            else:
                self._waiting.appendleft(job)
        self._deal()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A place can't be filled any more: the run is over."""
        if task.cancelled() or (error := task.exception()) is None or self._broken is not None:
            return
        self._broken = error
        waits = self._all_ready
        if waits is not None and not waits.done():
            waits.set_exception(error)
        for job in [*self._waiting, *(job for line in self._lines for job in line.jobs.values())]:
            if not job.result.done():
                job.result.set_exception(error)
        self._waiting.clear()

    def _check_broken(self) -> None:
        if self._broken is not None:
            raise self._broken


def _settle(job: Job, data: bytes) -> None:
    try:
        job.result.set_result(unpack_group(data))
    except Exception as error:  # noqa: BLE001 - whatever a plugin's class does when it is read
        problem = f"the episodes of {job.order.name} can't be read here: {type(error).__name__}: {error}"
        job.result.set_exception(ToolrlError(problem, hint="Install on this machine what the workers have."))


def _status(line: Line) -> dict[str, Any]:
    place = {"pid": line.hello.pid, "node": line.hello.node} if line.hello is not None else {}
    return {
        "worker": line.number,
        "state": line.state,
        **place,
        "groups": len(line.jobs),
        "episodes": line.load,
        "weights": line.has.version if line.has is not None else None,
        **line.status,
    }


def _unsent(job: Job, error: Exception) -> Exception:
    return RunStoppedError(
        f"{job.order.name} can't be sent to a rollout worker: {type(error).__name__}: {error}",
        hint="A task's fields must pickle; or sample in the trainer's process: cluster.rollout_workers 0.",
    )


def _deadly(job: Job, reason: str, said: str) -> Exception:
    return RunStoppedError(
        f"{job.deaths} rollout workers died while they sampled {job.order.name}, the last one: {reason}; {said}",
        hint="A tool may take its process down with it, or too much memory; or raise cluster.worker_restarts.",
    )
