"""Groups of episodes from many workers: each group is dealt whole to the least loaded worker that has room.

The pool takes the place of the in-process `Runner`. A worker may have `concurrency` episodes in flight; it is dealt
another group as soon as one of these places is free, so that its engine is kept busy and yet holds back at most one
group that others could start sooner. Other groups wait here, in the order of their requests; the caller bounds how
many.

When a worker dies its unfinished groups go back to the front of the queue and start again from the beginning, their
seeds being the same. A group counts when it has arrived whole, so none is counted twice and none is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from pickle import loads
from typing import TYPE_CHECKING, Any

from toolrl.errors import RunStoppedError, ToolrlError
from toolrl.protocols import WeightSource
from toolrl.rollout.environment import Limits
from toolrl.rollout.source import FailurePolicy
from toolrl.tools.service_restarts import ServiceRestarts
from toolrl.types import Group, Task
from toolrl_plugin_ray.messages import (
    GroupOrder,
    WeightUpdate,
    WorkerReport,
    WorkerSpec,
    unpack_error,
)
from toolrl_plugin_ray.worker_supervisor import PendingGroup, WorkerHandle, WorkerLostError, WorkerSupervisor

if TYPE_CHECKING:
    from toolrl_plugin_ray.broadcast import WeightBroadcast

_log = logging.getLogger(__name__)


class WorkerPool:
    """`toolrl.rollout.source.RolloutWorkers`. `start` and `stop` it on one event loop."""

    def __init__(
        self,
        spawn: Callable[[int], WorkerHandle],
        spec: Callable[[int], WorkerSpec],
        broadcast: WeightBroadcast,
        failures: FailurePolicy,
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
        self._broadcast = broadcast
        self._failures = failures
        self._concurrency = concurrency
        self._restarts = restarts
        self._workers = [WorkerSupervisor(number, spawn, self, timeout, restarts) for number in range(workers)]
        self._serving: list[asyncio.Task[None]] = []
        self._helping: set[asyncio.Task[None]] = set()
        self._waiting: deque[PendingGroup] = deque()
        self._keys = itertools.count()
        self._update: WeightUpdate | None = None
        self._broken: BaseException | None = None
        self._all_ready: asyncio.Future[None] | None = None
        self._lost_workers = self._lost_groups = 0
        """Since metrics were last asked for."""
        self._seen_restarts = ServiceRestarts()

    # Start, stop.

    async def start(self, weights: WeightSource, version: int) -> None:
        """Start all workers with these weights; returns when all are ready. Raises what one of them raised."""
        self._update = await self._broadcast.publish(weights, version)
        self._all_ready = asyncio.get_running_loop().create_future()
        for worker in self._workers:
            task = asyncio.create_task(worker.serve())
            task.add_done_callback(self._ended)
            self._serving.append(task)
        await self._all_ready

    async def stop(self) -> None:
        """Stop all workers; what is in flight is cancelled."""
        for task in [*self._serving, *self._helping]:
            task.cancel()
        await asyncio.gather(*self._serving, *self._helping, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._workers))
        jobs = [*self._waiting, *(job for worker in self._workers for job in worker.jobs.values())]
        self._waiting.clear()
        for job in jobs:
            job.result.cancel()

    # Groups.

    async def run(
        self, tasks: Sequence[Task], group_size: int, limits: Limits, *, round_id: str, training: bool = True
    ) -> list[Group]:
        """See GroupSource. Observers are notified of a group's episodes when the whole group has arrived."""

        async def one(task: Task, number: int) -> Group:
            group = await self._group(task, number, group_size, limits, round_id, training)
            self.notify([group])
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
        return asyncio.Semaphore(self._concurrency * len(self._workers))

    def notify(self, groups: Iterable[Group]) -> None:
        """See GroupSource."""
        self._failures.notify(groups)

    def check(self, groups: Sequence[Group]) -> None:
        """See GroupSource."""
        self._failures.check(groups)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Hand weights to all workers; one that is being replaced starts with them. Raises EngineError where they don't
        arrive as they were sent."""
        self._update = await self._broadcast.publish(weights, version)
        await self._broadcast.send(self._update, [it for it in self._workers if it.state == "ready"])
        self._check_broken()

    def metrics(self) -> dict[str, float]:
        """See RolloutWorkers."""
        ready = sum(worker.state == "ready" for worker in self._workers)
        metrics = {
            "cluster/workers": float(ready),
            "cluster/restarted_workers": float(self._lost_workers),
            "cluster/restarted_groups": float(self._lost_groups),
        }
        self._lost_workers = self._lost_groups = 0
        return metrics | self._seen_restarts.metrics()

    def status(self) -> dict[str, Any]:
        """See RolloutWorkers."""
        return {
            "waiting_groups": len(self._waiting),
            "restarted": self._seen_restarts.totals(),
            "workers": [_status(worker) for worker in self._workers],
        }

    async def _group(
        self, task: Task, number: int, group_size: int, limits: Limits, round_id: str, training: bool
    ) -> Group:
        self._check_broken()
        order = GroupOrder(next(self._keys), task, number, group_size, limits, round_id, training)
        job = PendingGroup(order, asyncio.get_running_loop().create_future(), group_size)
        self._waiting.append(job)
        self._deal()
        try:
            return await job.result
        finally:
            if not job.result.done() or job.result.cancelled():
                self._drop(job)

    # Dealing.

    def _deal(self) -> None:
        """Deal waiting groups to workers that have room."""
        dealt: dict[int, list[PendingGroup]] = {}
        while self._waiting:
            free = [worker for worker in self._workers if worker.state == "ready" and worker.load < self._concurrency]
            if not free:
                break
            worker = min(free, key=lambda it: it.load)
            job = self._waiting.popleft()
            if job.result.done():  # The caller was cancelled.
                continue
            worker.jobs[job.order.key] = job
            worker.load += job.left
            dealt.setdefault(worker.number, []).append(job)
        for number, jobs in dealt.items():
            sent = self._help(self._send(self._workers[number], jobs))
            for job in jobs:
                job.sent = sent

    async def _send(self, worker: WorkerSupervisor, jobs: Sequence[PendingGroup]) -> None:
        try:
            await worker.ask("deal", [job.order for job in jobs])
        except WorkerLostError:
            pass  # The supervisor's own task gets this error, too.
        except Exception as error:  # noqa: BLE001 - a task that doesn't pickle, for one
            for job in jobs:
                if self._take(worker, job.order.key) is not None and not job.result.done():
                    job.result.set_exception(_unsent(job, error))
            self._deal()

    def _drop(self, job: PendingGroup) -> None:
        """The caller was cancelled."""
        if job in self._waiting:
            self._waiting.remove(job)
        for worker in self._workers:
            if self._take(worker, job.order.key) is not None and worker.state == "ready":
                self._help(self._forget(worker, job))
                self._deal()

    async def _forget(self, worker: WorkerSupervisor, job: PendingGroup) -> None:
        if job.sent is not None:  # Else the order might come after this.
            await asyncio.wait([job.sent])
        with suppress(WorkerLostError):
            await worker.ask("drop", [job.order.key])

    def _take(self, worker: WorkerSupervisor, key: int) -> PendingGroup | None:
        """Take a group off a worker's list; its places are free."""
        job = worker.jobs.pop(key, None)
        if job is not None:
            worker.load -= job.left
        return job

    def _help(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._helping.add(task)
        task.add_done_callback(self._helping.discard)
        return task

    # What the supervisors report.

    def current(self) -> WeightUpdate:
        """The weights to sample from."""
        assert self._update is not None, "start() was awaited"
        return self._update

    def send_to_one(self, update: WeightUpdate) -> AbstractAsyncContextManager[WeightUpdate]:
        """While this is entered one worker can receive these weights by what it yields."""
        return self._broadcast.send_to_one(update)

    def ready(self, worker: WorkerSupervisor) -> None:
        """A worker can be dealt to."""
        waits = self._all_ready
        if waits is not None and not waits.done() and all(it.state == "ready" for it in self._workers):
            waits.set_result(None)
        self._deal()

    def reported(self, worker: WorkerSupervisor, report: WorkerReport) -> None:
        """Take over what a worker has done, and deal it more."""
        self._seen_restarts.hear((report.status or {}).get("restarted", ()))
        for key, count in report.ended.items():
            job = worker.jobs.get(key)
            if job is not None:
                count = min(count, job.left)
                job.left -= count
                worker.load -= count
        for key, data in report.done:
            if (job := self._take(worker, key)) is not None and not job.result.done():
                _settle(job, data)
        for key, data in report.failed:
            if (job := self._take(worker, key)) is not None and not job.result.done():
                job.result.set_exception(unpack_error(data))
        self._deal()

    def lost(self, worker: WorkerSupervisor, reason: str, last_lines: str) -> None:
        """Put what a dead worker was sampling to the front of the queue."""
        jobs = [job for job in worker.jobs.values() if not job.result.done()]
        worker.jobs.clear()
        worker.load = 0
        self._lost_workers += 1
        self._lost_groups += len(jobs)
        _log.warning(
            "rollout worker %d died (%s); %d of its groups start again on others. %s",
            worker.number, reason, len(jobs), last_lines,
        )  # fmt: skip
        for job in sorted(jobs, key=lambda it: it.order.key, reverse=True):
            job.left = job.order.group_size
            job.deaths += 1
            if job.deaths > self._restarts:
                job.result.set_exception(_deadly(job, reason, last_lines))
            else:
                self._waiting.appendleft(job)
        self._deal()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A worker can't be replaced any more: the run is over."""
        if task.cancelled() or (error := task.exception()) is None or self._broken is not None:
            return
        self._broken = error
        waits = self._all_ready
        if waits is not None and not waits.done():
            waits.set_exception(error)
        for job in [*self._waiting, *(job for worker in self._workers for job in worker.jobs.values())]:
            if not job.result.done():
                job.result.set_exception(error)
        self._waiting.clear()

    def _check_broken(self) -> None:
        if self._broken is not None:
            raise self._broken


def _settle(job: PendingGroup, data: bytes) -> None:
    try:
        job.result.set_result(loads(data))
    except Exception as error:  # noqa: BLE001 - whatever a plugin's class does when it is read
        problem = f"the episodes of {job.order.name} can't be read here: {type(error).__name__}: {error}"
        job.result.set_exception(ToolrlError(problem, hint="Install on this machine what the workers have."))


def _status(worker: WorkerSupervisor) -> dict[str, Any]:
    place = {"pid": worker.process.pid, "node": worker.process.node} if worker.process is not None else {}
    return {
        "worker": worker.number,
        "state": worker.state,
        **place,
        "groups": len(worker.jobs),
        "episodes": worker.load,
        "weights": worker.weights.version if worker.weights is not None else None,
        **worker.status,
    }


def _unsent(job: PendingGroup, error: Exception) -> Exception:
    return RunStoppedError(
        f"{job.order.name} can't be sent to a rollout worker: {type(error).__name__}: {error}",
        hint="A task's fields must pickle; or sample in the trainer's process: cluster.rollout_workers 0.",
    )


def _deadly(job: PendingGroup, reason: str, last_lines: str) -> Exception:
    return RunStoppedError(
        f"{job.deaths} rollout workers died while they sampled {job.order.name}, the last one: {reason}; {last_lines}",
        hint="A tool may take its process down with it, or too much memory; or raise cluster.worker_restarts.",
    )
