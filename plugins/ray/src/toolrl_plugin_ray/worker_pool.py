"""Groups of episodes from many workers: each group is dealt whole to the least loaded worker that has room.

The pool takes the place of the in-process `Runner`. A worker may have `concurrency` episodes in flight; it is dealt
another group as soon as one of these places is free, so that its engine is kept busy and yet holds back at most one
group that others could start sooner. Other groups wait here, in the order of their requests; the caller bounds how
many.

When a worker dies its unfinished groups wait again, before newer ones, and start from the beginning, their seeds being
the same. A group counts when it has arrived whole, so none is counted twice and none is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from pickle import loads
from typing import TYPE_CHECKING, Any

from toolrl.errors import RunStoppedError
from toolrl.protocols import WeightSource
from toolrl.rollouts.environment import Limits
from toolrl.rollouts.source import FailurePolicy
from toolrl.tools.restart_counts import RestartCounts
from toolrl.types import Group, Task
from toolrl_plugin_ray.messages import GroupOrder, WeightUpdate, WorkerReport, WorkerSpec, pickled
from toolrl_plugin_ray.worker_supervisor import WorkerLostError, WorkerSupervisor

if TYPE_CHECKING:
    from toolrl_plugin_ray.broadcast import WeightBroadcast
    from toolrl_plugin_ray.rollout import ActorHandle

_log = logging.getLogger(__name__)


class WorkerPool:
    """`toolrl.rollouts.source.RolloutWorkers`. `start` and `stop` it on one event loop."""

    def __init__(
        self,
        spawn: Callable[[int], ActorHandle],
        spec: Callable[[int], WorkerSpec],
        broadcast: WeightBroadcast,
        failures: FailurePolicy,
        *,
        workers: int,
        concurrency: int,
        timeout: float = 600.0,
        restarts: int = 3,
    ) -> None:
        """`spawn(number)` begins a worker's process and returns at once."""
        self.spec = spec
        self.broadcast = broadcast
        self._failures = failures
        self._concurrency = concurrency
        self._restarts = restarts
        self._workers = [WorkerSupervisor(number, spawn, self, timeout, restarts) for number in range(workers)]
        self._serving: list[asyncio.Task[None]] = []
        self._waiting: dict[int, tuple[int, asyncio.Future[WorkerSupervisor]]] = {}
        """By the orders' keys: sizes of groups, and the workers that they will get."""
        self._keys = itertools.count()
        self._update: WeightUpdate | None = None
        self._broken: BaseException | None = None
        self._all_ready: asyncio.Future[None] | None = None
        self._lost_workers = self._lost_groups = 0
        """Since metrics were last asked for."""
        self._seen_restarts = RestartCounts()

    # Start, stop.

    async def start(self, weights: WeightSource, version: int) -> None:
        """Start all workers with these weights; returns when all are ready. Raises what one of them raised."""
        self._update = await self.broadcast.publish(weights, version)
        self._all_ready = asyncio.get_running_loop().create_future()
        for worker in self._workers:
            task = asyncio.create_task(worker.serve())
            task.add_done_callback(self._ended)
            self._serving.append(task)
        await self._all_ready

    async def stop(self) -> None:
        """Stop all workers; what is in flight is cancelled."""
        self._end(RunStoppedError("the rollout workers were stopped"))
        await asyncio.gather(*self._serving, return_exceptions=True)
        await asyncio.gather(*(worker.close() for worker in self._workers))

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
        self._update = await self.broadcast.publish(weights, version)
        await self.broadcast.send(self._update, [it for it in self._workers if it.state == "ready"])
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
        order = GroupOrder(next(self._keys), task, number, group_size, limits, round_id, training)
        hint = "A task's fields must pickle; or sample in the trainer's process: cluster.rollout_workers 0."
        packed = pickled(order, RunStoppedError(f"{order.name} can't be sent to a rollout worker", hint=hint))
        deaths = 0
        while True:
            try:
                worker = await self._free_worker(order)
                group: Group = loads(await worker.sample(order.key, packed))
                return group
            except WorkerLostError as error:
                self._lost_groups, deaths = self._lost_groups + 1, deaths + 1
                if deaths > self._restarts:
                    raise RunStoppedError(
                        f"{deaths} rollout workers died while they sampled {order.name}, the last one: {error}; "
                        f"{worker.last_lines()}",
                        hint="A tool may take its process down with it, or too much memory; or raise "
                        "cluster.worker_restarts.",
                    ) from None
            finally:
                self._waiting.pop(order.key, None)
                for worker in self._workers:
                    worker.groups.pop(order.key, None)
                self._deal()

    async def _free_worker(self, order: GroupOrder) -> WorkerSupervisor:
        """Wait for a worker that has room. Raises what ended the run."""
        self._check_broken()
        place: asyncio.Future[WorkerSupervisor] = asyncio.get_running_loop().create_future()
        self._waiting[order.key] = order.group_size, place
        self._deal()
        return await place

    def _deal(self) -> None:
        """Deal waiting groups to workers that have room, the oldest first."""
        for key, (size, place) in sorted(self._waiting.items()):
            free = [worker for worker in self._workers if worker.state == "ready" and worker.load < self._concurrency]
            if not free:
                return
            del self._waiting[key]
            if not place.done():  # Its caller was cancelled else.
                worker = min(free, key=lambda it: it.load)
                worker.groups[key] = size
                place.set_result(worker)

    # What the supervisors report.

    def current(self) -> WeightUpdate:
        """The weights to sample from."""
        assert self._update is not None, "start() was awaited"
        return self._update

    def ready(self, worker: WorkerSupervisor) -> None:
        """A worker can be dealt to."""
        waits = self._all_ready
        if waits is not None and not waits.done() and all(it.state == "ready" for it in self._workers):
            waits.set_result(None)
        self._deal()

    def reported(self, worker: WorkerSupervisor, report: WorkerReport) -> None:
        """Take over what a worker has done, and deal it more."""
        self._seen_restarts.merge((report.status or {}).get("restarted", ()))
        for key, count in report.ended.items():
            if key in worker.groups:
                worker.groups[key] = max(0, worker.groups[key] - count)
        self._deal()

    def lost(self, worker: WorkerSupervisor, reason: str, last_lines: str) -> None:
        """A worker died."""
        self._lost_workers += 1
        _log.warning(
            "rollout worker %d died (%s); its groups start again on others. %s", worker.number, reason, last_lines
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A worker can't be replaced any more: the run is over."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._end(error)
            for worker in self._workers:
                if worker.handle is not None:
                    worker.handle.kill()  # Its groups then end, too.

    def _end(self, error: BaseException) -> None:
        self._broken = self._broken or error
        for task in self._serving:
            task.cancel()
        for waits in [self._all_ready, *(place for _, place in self._waiting.values())]:
            if waits is not None and not waits.done():
                waits.set_exception(self._broken)

    def _check_broken(self) -> None:
        if self._broken is not None:
            raise self._broken


def _status(worker: WorkerSupervisor) -> dict[str, Any]:
    return {
        "worker": worker.number,
        "state": worker.state,
        **worker.process,
        "groups": len(worker.groups),
        "episodes": worker.load,
        "weights": worker.weights.version if worker.weights is not None else None,
        **worker.status,
    }
