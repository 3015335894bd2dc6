"""Weights from the trainer's memory to that of all workers at once, by a torch.distributed broadcast.

The trainer copies what it sends into flat buckets (`toolrl_plugin_torch.sharding.transfer`). The copy is kept, as a
worker that replaces a dead one may come while the trainer trains already: it gets its first weights in a broadcast of
its own. Receivers are the workers, or the processes in which their engines hold the weights.

A worker that dies during a broadcast aborts it for all, and the others get all of it again in another one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta

import torch

from toolrl.errors import EngineError
from toolrl.protocols import WeightSource
from toolrl.tools.threads import POOL
from toolrl_plugin_ray.messages import WeightUpdate
from toolrl_plugin_ray.worker_supervisor import WorkerLostError, WorkerSupervisor
from toolrl_plugin_torch.sharding.collective_group import CONNECT_SECONDS, Backend, Rendezvous, TransferBrokenError
from toolrl_plugin_torch.sharding.rendezvous import listen
from toolrl_plugin_torch.sharding.transfer import buckets, send

MOST_TRIES = 3
"""Broadcasts in a row that break though no worker was lost, before the run ends."""

_log = logging.getLogger(__name__)


class WeightBroadcast:
    """The trainer's side."""

    def __init__(
        self, host: str, *, timeout: float, receivers: int = 0, backend: Backend = "gloo", device: str = "cuda"
    ) -> None:
        """`host` is this machine's address for the workers, `timeout` how many seconds a transfer may stand still,
        `receivers` how many processes of each worker's engine take the weights themselves, 0 where it reads a module.
        nccl sends from `device`."""
        self._host = host
        self._timeout = timeout
        self._receivers = receivers
        self._backend: Backend = backend
        self._device = device
        self._copies: dict[int, list[tuple[bytes, torch.Tensor]]] = {}

    async def publish(self, weights: WeightSource, version: int) -> WeightUpdate:
        """Copy these weights, to be sent by `send` and `send_to_one`."""
        return await asyncio.to_thread(self._publish, weights, version)

    async def send(self, update: WeightUpdate, workers: Sequence[WorkerSupervisor]) -> None:
        """Send the weights to all these workers; one that is lost meanwhile is left to its supervisor. Raises
        EngineError where weights don't arrive as they were sent."""
        broken = 0
        while workers:
            handles = [worker.handle for worker in workers]
            async with self.transfer(update, len(workers)) as (parts, abort):
                sent = (_send_part(it, update, part, abort) for it, part in zip(workers, parts, strict=True))
                failures = await asyncio.gather(*sent)
            lost = [it for it, error in zip(workers, failures, strict=True) if isinstance(error, WorkerLostError)]
            reason = next((it for it in failures if isinstance(it, TransferBrokenError)), None)
            workers = [
                worker
                for worker, handle, error in zip(workers, handles, failures, strict=True)
                # Another process that starts in its place by now gets the weights there.
                if isinstance(error, TransferBrokenError) and worker.state == "ready" and worker.handle is handle
            ]
            if reason is None:
                continue
            broken = 0 if lost else broken + 1
            if broken >= MOST_TRIES:
                raise EngineError(
                    f"{broken} transfers of weights in a row broke, and no worker died: {reason.message}",
                    where=reason.where,
                    hint=reason.hint,
                )
            why = f"rollout worker {lost[0].number} was lost" if lost else reason.message
            _log.warning("version %d is sent again to %d rollout workers: %s", update.version, len(workers), why)

    @asynccontextmanager
    async def send_to_one(self, update: WeightUpdate) -> AsyncIterator[WeightUpdate]:
        """While this is entered one worker can receive the weights by what it gives. Raises WorkerLostError where that
        breaks: only another process in its place could still get them."""
        async with self.transfer(update, 1) as (parts, _):
            try:
                yield parts[0]
            except TransferBrokenError as error:
                raise WorkerLostError(f"it couldn't be sent the weights: {error.message}") from error

    @asynccontextmanager
    async def transfer(
        self, update: WeightUpdate, workers: int
    ) -> AsyncIterator[tuple[list[WeightUpdate], Callable[[], None]]]:
        """While this is entered the weights are sent to so many workers, as soon as each has got its part: gives the
        parts, and what aborts the transfer for all, which then raise TransferBrokenError."""
        packed = self._copies[update.version]
        for version in [it for it in self._copies if it < update.version]:
            del self._copies[version]  # A worker that starts from now on gets these.
        store = [listen(self._host, 0, timedelta(seconds=CONNECT_SECONDS))]
        each = self._receivers or 1
        at = Rendezvous(self._host, store[0].port, 0, 1 + workers * each, self._timeout, self._backend)
        parts = [replace(update, rendezvous=replace(at, rank=rank)) for rank in range(1, at.size, each)]
        sending = POOL.submit(self._send, at, packed)
        # Where it fails others notice by the store: it may be long before they notice a death.
        sending.add_done_callback(lambda it: store.clear() if it.cancelled() or it.exception() else None)
        try:
            yield parts, store.clear
        finally:
            store.clear()

    def _publish(self, weights: WeightSource, version: int) -> WeightUpdate:
        packed = self._copies[version] = list(
            buckets(weights.tensors() if self._receivers else weights.trained_tensors())
        )
        sent = {name: digest for table, _ in packed for name, *_, digest in json.loads(table)}
        if not self._receivers:
            return WeightUpdate(version, {**weights.frozen_digests(), **sent})
        # Merged tensors, and those that ranks share, have digests of what was sent alone.
        return WeightUpdate(version, {**sent, **weights.digests()}, weights.probe())

    def _send(self, at: Rendezvous, packed: list[tuple[bytes, torch.Tensor]]) -> None:
        if at.backend == "nccl":
            torch.cuda.set_device(self._device)  # Of this thread.
        send(at, packed)


async def _send_part(
    worker: WorkerSupervisor, update: WeightUpdate, part: WeightUpdate, abort: Callable[[], None]
) -> Exception | None:
    """The error of one worker; None when the weights have arrived."""
    try:
        await worker.update(update, part)
    except (WorkerLostError, TransferBrokenError) as error:
        abort()
        return error
    return None
