"""Weights from the trainer's memory to that of all workers at once, by a torch.distributed broadcast in buckets.

The trainer copies what is trained into buckets of bytes; workers receive them and copy out of them into their model.
The copy is kept, as a worker that replaces a dead one may come while the trainer trains already: it gets its first
weights in a group of two. From the next version on it is one of all, in a new group.

A worker that dies during a broadcast aborts it for all: the group ends, and the others get all of it again in another
one. A worker whose weights are half written keeps its engine still until then.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from toolrl.errors import EngineError
from toolrl.protocols import WeightSource
from toolrl.tools.threads import POOL
from toolrl_plugin_ray.collective_group import CollectiveGroup, GroupStore
from toolrl_plugin_ray.messages import Bucket, Rendezvous, TensorSlot, TransferBrokenError, WeightUpdate
from toolrl_plugin_ray.weights import WeightWriter, buckets, distinct, frozen_names
from toolrl_plugin_ray.worker_supervisor import WorkerLostError, WorkerSupervisor
from toolrl_plugin_torch.probe import digests

BUCKET_BYTES = 16 * 2**20
"""What is sent at once; a larger tensor is a bucket of its own. A worker needs two of them beside its model. Small ones
are copied out of the processor's cache: 200 MB to two workers on one machine took 0.45 s in buckets of 4 MiB, 0.52 s in
16, 0.69 s in 64. Across machines each costs a message and an answer, so it isn't the smallest."""
ALIGNMENT = 16
"""Each tensor begins at a multiple of so many bytes, so that it can be read where it lies."""
MOST_TRIES = 3
"""Broadcasts in a row that break though no worker was lost, before the run ends."""

_log = logging.getLogger(__name__)


class WeightBroadcast:
    """The trainer's side."""

    def __init__(self, host: str, *, timeout: float, bucket_bytes: int = BUCKET_BYTES) -> None:
        """`host` is this machine's address for the workers, `timeout` how many seconds a transfer may stand still."""
        self._host = host
        self._timeout = timeout
        self._bucket_bytes = bucket_bytes
        self._store: GroupStore | None = None
        self._copies: dict[int, list[Any]] = {}
        self._names, self._sequence = itertools.count(), itertools.count()
        self._members: tuple[object, ...] = ()
        self._lasting: CollectiveGroup | None = None

    async def publish(self, weights: WeightSource, version: int) -> WeightUpdate:
        """Copy these weights, to be sent by `send` and `send_to_one`."""
        return await asyncio.to_thread(self._publish, weights, version)

    async def send(self, update: WeightUpdate, workers: Sequence[WorkerSupervisor]) -> None:
        """Send the weights to all these workers; one that is lost meanwhile is left to its supervisor. Raises
        EngineError where weights don't arrive as they were sent."""
        broken = 0
        while workers:
            handles = [worker.handle for worker in workers]
            async with self.transfer(update, handles, lasting=True) as transfer:
                parts = zip(workers, transfer.parts, strict=True)
                failures = await asyncio.gather(*(_send_part(it, update, part, transfer) for it, part in parts))
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
    async def send_to_one(self, update: WeightUpdate, worker: object) -> AsyncIterator[WeightUpdate]:
        """While this is entered one worker can receive the weights by what it gives. Raises WorkerLostError where that
        breaks: only another process in its place could still get them."""
        async with self.transfer(update, [worker], lasting=False) as transfer:
            try:
                yield transfer.parts[0]
            except TransferBrokenError as error:
                raise WorkerLostError(f"it couldn't be sent the weights: {error.message}") from error

    def close(self) -> None:
        """Free what is kept."""
        if self._lasting is not None:
            self._lasting.close()
        self._lasting = self._store = None
        self._copies.clear()

    @asynccontextmanager
    async def transfer(
        self, update: WeightUpdate, members: Sequence[object], *, lasting: bool
    ) -> AsyncIterator[BroadcastTransfer]:
        """While this is entered the weights are sent to these members, as soon as each has got its part. A `lasting`
        group is kept for the next transfer to the same members."""
        data = self._copies[update.version]
        for version in [it for it in self._copies if it < update.version]:
            del self._copies[version]  # A worker that starts from now on gets these.
        if self._store is None:
            self._store = GroupStore(self._host)
        group = self._group_of(tuple(members), self._store, lasting)
        sequence = next(self._sequence)
        sending = POOL.submit(group.send, sequence, data)
        parts = (replace(group.rendezvous, rank=rank, sequence=sequence) for rank in range(1, group.rendezvous.size))
        transfer = BroadcastTransfer(tuple(replace(update, rendezvous=it) for it in parts), group, self._store)

        def sent(done: asyncio.Future[None]) -> None:
            if done.cancelled() or done.exception() is not None:
                transfer.abort()  # It may be long before the others notice a death.

        sending.add_done_callback(sent)
        try:
            yield transfer
            if not group.broken:
                await asyncio.wait([sending])
        except BaseException:
            transfer.abort()
            raise
        finally:
            if group.broken or not lasting:
                group.close()

    def _publish(self, weights: WeightSource, version: int) -> WeightUpdate:
        # Its own tensors, and not the whole model of an adapter: a worker's module has the same ones.
        module = weights.module()
        packed = [pack(it) for it in buckets(module.state_dict(), frozen_names(module), self._bucket_bytes)]
        self._copies[version] = [data for _, data in packed]
        return WeightUpdate(version, tuple(bucket for bucket, _ in packed), digests(distinct(module.state_dict())))

    def _group_of(self, members: tuple[object, ...], store: GroupStore, lasting: bool) -> CollectiveGroup:
        kept = self._lasting
        if lasting and kept is not None and not kept.broken and members == self._members:
            return kept
        name = f"group-{next(self._names)}"
        group = CollectiveGroup(
            Rendezvous(self._host, store.port, name, 0, len(members) + 1, 0, self._timeout, lasting)
        )
        if lasting:
            if kept is not None:
                kept.close()
            self._lasting, self._members = group, members
        return group


@dataclass(frozen=True)
class BroadcastTransfer:
    """A broadcast that is under way."""

    parts: tuple[WeightUpdate, ...]
    """What each member receives it by."""
    group: CollectiveGroup
    store: GroupStore

    def abort(self) -> None:
        """End it for all members, which raise TransferBrokenError."""
        self.group.abort()
        self.store.abort(self.group.rendezvous.name)


class WeightReceiver:
    """A worker's side."""

    def __init__(self) -> None:
        self._group: CollectiveGroup | None = None

    async def receive(self, update: WeightUpdate, module: Any) -> None:
        """Write weights into a module's own tensors. Raises TransferBrokenError where some of them are written and the
        rest won't come; EngineError where they don't fit or are incomplete."""
        assert update.rendezvous is not None, "the trainer sets it"
        await asyncio.to_thread(self._receive, update, update.rendezvous, module)

    def close(self) -> None:
        """Leave the group."""
        if self._group is not None:
            self._group.close()
            self._group = None

    def _receive(self, update: WeightUpdate, rendezvous: Rendezvous, module: Any) -> None:
        group = self._group
        if group is None or group.rendezvous.name != rendezvous.name:
            self.close()
            group = self._group = CollectiveGroup(rendezvous)
        writer = WeightWriter(module)
        try:
            received = group.receive(rendezvous.sequence, [bucket.size for bucket in update.buckets])
            for bucket, data in zip(update.buckets, received, strict=True):
                writer.write(unpack(bucket, data))
        except BaseException:
            self.close()
            raise
        if not rendezvous.lasting:
            self.close()
        writer.check_complete()


def pack(tensors: Mapping[str, Any]) -> tuple[Bucket, Any]:
    """Tensors as one of bytes, and the plan by which they are found in it."""
    slots, end = [], 0
    for name, tensor in tensors.items():
        slots.append(TensorSlot(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end))
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    data = torch.empty(end, dtype=torch.uint8)
    bucket = Bucket(end, tuple(slots))
    for name, place in unpack(bucket, data).items():
        place.copy_(tensors[name])
    return bucket, data


def unpack(bucket: Bucket, data: Any) -> dict[str, Any]:
    """The tensors, in place."""
    found = {}
    for slot in bucket.slots:
        dtype = getattr(torch, slot.dtype)
        size = dtype.itemsize
        for length in slot.shape:
            size *= length
        found[slot.name] = data[slot.start : slot.start + size].view(dtype).view(slot.shape)
    return found


async def _send_part(
    worker: WorkerSupervisor, update: WeightUpdate, part: WeightUpdate, transfer: BroadcastTransfer
) -> Exception | None:
    """The error of one worker; None when the weights have arrived."""
    try:
        await worker.update(update, part)
    except (WorkerLostError, TransferBrokenError) as error:
        transfer.abort()
        return error
    return None
