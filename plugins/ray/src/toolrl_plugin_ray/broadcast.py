"""Weights from the trainer's memory to that of all workers at once, by a torch.distributed broadcast.

The trainer copies what is trained; workers receive that into their model's own tensors. The copy is kept, as a worker
that replaces a dead one may come while the trainer trains already: it gets its first weights in a broadcast of two.

A worker that dies during a broadcast aborts it for all, and the others get all of it again in another one. A worker
writes weights into its model when all of them have arrived.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch

from toolrl.errors import EngineError
from toolrl.protocols import WeightSource
from toolrl.tools.threads import POOL
from toolrl_plugin_ray.messages import WeightUpdate
from toolrl_plugin_ray.weights import described, targets
from toolrl_plugin_ray.worker_supervisor import WorkerLostError, WorkerSupervisor
from toolrl_plugin_torch.probe import digests
from toolrl_plugin_torch.sharding.collective_group import CONNECT_SECONDS, Rendezvous, TransferBrokenError, broadcast
from toolrl_plugin_torch.sharding.rendezvous import listen

BUCKET_BYTES = 4 * 2**20
"""What is sent at once."""
MOST_TRIES = 3
"""Broadcasts in a row that break though no worker was lost, before the run ends."""

_log = logging.getLogger(__name__)


class WeightBroadcast:
    """The trainer's side."""

    def __init__(self, host: str, *, timeout: float) -> None:
        """`host` is this machine's address for the workers, `timeout` how many seconds a transfer may stand still."""
        self._host = host
        self._timeout = timeout
        self._copies: dict[int, Any] = {}

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
        pieces = _pieces(self._copies[update.version])
        for version in [it for it in self._copies if it < update.version]:
            del self._copies[version]  # A worker that starts from now on gets these.
        store = [listen(self._host, 0, timedelta(seconds=CONNECT_SECONDS))]
        at = Rendezvous(self._host, store[0].port, 0, workers + 1, self._timeout)
        parts = [replace(update, rendezvous=replace(at, rank=rank)) for rank in range(1, at.size)]
        sending = POOL.submit(lambda: list(broadcast(at, pieces)))
        # Where it fails others notice by the store: it may be long before they notice a death.
        sending.add_done_callback(lambda it: store.clear() if it.cancelled() or it.exception() else None)
        try:
            yield parts, store.clear
        finally:
            store.clear()

    def _publish(self, weights: WeightSource, version: int) -> WeightUpdate:
        parts, sent, sums = [], {}, dict(weights.frozen_digests())
        for name, tensor in weights.trained_tensors():  # Gathered one by one where ranks share them.
            sent |= described({name: tensor})
            sums |= digests([(name, tensor)])
            parts.append(tensor.contiguous().view(-1).view(torch.uint8).cpu())
        self._copies[version] = torch.cat(parts)
        return WeightUpdate(version, sent, sums)


async def receive(update: WeightUpdate, module: Any) -> Callable[[], None]:
    """Weights from the trainer, once all have arrived: gives what writes them into a module's own tensors. Raises
    TransferBrokenError where some won't come; EngineError where the module isn't the trainer's."""
    assert update.rendezvous is not None, "the trainer sets it"
    own = targets(update.tensors, module)
    sizes = [it.nbytes for it in own]
    data = torch.empty(sum(sizes), dtype=torch.uint8)
    await asyncio.to_thread(list, broadcast(update.rendezvous, _pieces(data)))

    def write() -> None:
        with torch.no_grad():
            for tensor, part in zip(own, data.split(sizes), strict=True):
                # Where tensors of several types meet one may begin where its type can't; a clone begins at 0.
                part = part if part.storage_offset() % tensor.itemsize == 0 else part.clone()
                tensor.copy_(part.view(tensor.dtype).view(tensor.shape))

    return write


def _pieces(data: Any) -> list[Any]:
    return [data[at : at + BUCKET_BYTES] for at in range(0, len(data), BUCKET_BYTES)]


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
