"""Weights by a torch.distributed broadcast in buckets, from the trainer's memory to that of all workers at once.

Nothing is serialised, and nothing passes through an object store or a disk: the trainer copies what is trained into
buckets of bytes, workers receive them, and copy out of them into their model. The copy is kept, as a worker that takes
a dead one's place may come while the trainer trains already. Such a worker gets its first weights in a group of two;
from the next version on it is one of all, in a group that is made anew whenever a member was replaced.

A worker that dies in the middle breaks a broadcast off for everybody: the group ends, and those who live get all of it
again in another one. A worker whose weights are half written keeps its engine still until then.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from toolrl.cluster.circle import Circle, serve
from toolrl.cluster.messages import Bucket, Handoff, Meeting, Piece
from toolrl.cluster.weights import Writing, buckets, distinct, frozen_names, receive
from toolrl.protocols import WeightSource
from toolrl_plugin_torch.probe import digests

BUCKET_BYTES = 16 * 2**20
"""What is sent at once; a tensor that is larger is a bucket of its own. A worker needs two of them beside its model.
Small ones are copied out of the processor's cache: 200 MB to two workers on one machine took 0.45 s in buckets of
4 MiB, 0.52 s in 16, 0.69 s in 64. Across machines each costs a message and an answer, so it isn't the smallest."""
ALIGNMENT = 16
"""Each tensor begins at a multiple of so many bytes, so that it can be read where it lies."""


class BroadcastCourier:
    """Weights to all workers at once. A `Courier` whose handoffs are passed on while `passing` is entered."""

    def __init__(self, host: str, *, timeout: float, bucket_bytes: int = BUCKET_BYTES) -> None:
        """`host` is this machine's address for the workers, `timeout` how many seconds a transfer may stand still."""
        self._host = host
        self._timeout = timeout
        self._bucket_bytes = bucket_bytes
        self._store: Any = None
        self._copies: dict[int, list[Any]] = {}
        self._names, self._turns = itertools.count(), itertools.count()
        self._members: tuple[object, ...] = ()
        self._circle: Circle | None = None

    async def publish(self, weights: WeightSource, version: int) -> Handoff:
        """See Courier."""
        return await asyncio.to_thread(self._publish, weights, version)

    def close(self) -> None:
        """See Courier."""
        if self._circle is not None:
            self._circle.close()
        self._circle = self._store = None
        self._copies.clear()

    def _publish(self, weights: WeightSource, version: int) -> Handoff:
        # Its own tensors, and not the whole model of an adapter: a worker's module has the same ones.
        module = weights.module()
        packed = [pack(it) for it in buckets(module.state_dict(), frozen_names(module), self._bucket_bytes)]
        self._copies[version] = [data for _, data in packed]
        return Handoff(version, tuple(bucket for bucket, _ in packed), digests(distinct(module.state_dict())))

    @asynccontextmanager
    async def passing(self, handoff: Handoff, members: Sequence[object], *, lasting: bool) -> AsyncIterator[Passing]:
        """While this is entered the weights are sent to these members, as soon as each has got its part. Members are
        told apart by what they are; a `lasting` group is kept for the next time that the same ones are named."""
        data = self._copies[handoff.version]
        for version in [it for it in self._copies if it < handoff.version]:
            del self._copies[version]  # Who starts from now on gets these.
        circle = self._circle_of(tuple(members), lasting)
        turn = next(self._turns)
        sending = in_thread(lambda: circle.lead(turn, data))
        parts = (replace(circle.meeting, rank=rank, turn=turn) for rank in range(1, circle.meeting.size))
        passing = Passing(tuple(replace(handoff, meeting=it) for it in parts), circle, self._store)

        def sent(done: asyncio.Future[None]) -> None:
            if done.cancelled() or done.exception() is not None:
                passing.break_off()  # It may be long before anybody else hears of who died.

        sending.add_done_callback(sent)
        try:
            yield passing
            if not circle.broken:
                await asyncio.wait([sending])
        except BaseException:
            passing.break_off()
            raise
        finally:
            if circle.broken or not lasting:
                circle.close()

    def _circle_of(self, members: tuple[object, ...], lasting: bool) -> Circle:
        kept = self._circle
        if lasting and kept is not None and not kept.broken and members == self._members:
            return kept
        if self._store is None:
            self._store = serve(self._host)
        name = f"circle-{next(self._names)}"
        circle = Circle(
            Meeting(self._host, self._store.port, name, 0, len(members) + 1, 0, self._timeout, lasting=lasting)
        )
        if lasting:
            if kept is not None:
                kept.close()
            self._circle, self._members = circle, members
        return circle


@dataclass(frozen=True)
class Passing:
    """A transfer that goes on."""

    parts: tuple[Handoff, ...]
    """What each member is told."""
    circle: Circle
    store: Any

    def break_off(self) -> None:
        """End it for all members."""
        # Where it broke by itself nobody else knows of that yet.
        self.circle.break_off()
        self.store.set(f"{self.circle.meeting.name}/off", "")


class Receiver:
    """A worker's side: takes weights by whatever way they come."""

    def __init__(self) -> None:
        self._circle: Circle | None = None

    async def take(self, handoff: Handoff, module: Any) -> None:
        """Write weights into a module's own tensors. Raises TransferBrokenError where some of them are written and more
        won't come; EngineError where they don't fit or aren't whole."""
        if handoff.meeting is None:
            await receive(handoff, module)
        else:
            await asyncio.to_thread(self._follow, handoff, handoff.meeting, module)

    def _follow(self, handoff: Handoff, meeting: Meeting, module: Any) -> None:
        circle = self._circle
        if circle is None or circle.meeting.name != meeting.name:
            self.close()
            circle = self._circle = Circle(meeting)
        writing = Writing(module)
        try:
            sizes = [bucket.size for bucket in handoff.buckets]
            for bucket, data in zip(handoff.buckets, circle.follow(meeting.turn, sizes), strict=True):
                writing.write(unpack(bucket, data))
        except BaseException:
            self.close()
            raise
        if not meeting.lasting:
            self.close()
        writing.check_whole()

    def close(self) -> None:
        """Leave the group."""
        if self._circle is not None:
            self._circle.close()
            self._circle = None


def pack(tensors: Mapping[str, Any]) -> tuple[Bucket, Any]:
    """Tensors as one of bytes, and the plan by which they are found in it."""
    pieces, end = [], 0
    for name, tensor in tensors.items():
        pieces.append(Piece(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), end))
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    data = torch.empty(end, dtype=torch.uint8)
    bucket = Bucket(end, pieces=tuple(pieces))
    for name, place in unpack(bucket, data).items():
        place.copy_(tensors[name])
    return bucket, data


def unpack(bucket: Bucket, data: Any) -> dict[str, Any]:
    """The tensors, in place."""
    found = {}
    for piece in bucket.pieces:
        dtype = getattr(torch, piece.dtype)
        size = dtype.itemsize
        for length in piece.shape:
            size *= length
        found[piece.name] = data[piece.start : piece.start + size].view(dtype).view(piece.shape)
    return found


def in_thread(work: Callable[[], None]) -> asyncio.Future[None]:
    """Do it in a thread of its own, which no process's end waits for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if not done.done():
            done.set_result(None) if error is None else done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        try:
            work()
        except BaseException as raised:  # noqa: BLE001 - who awaits it hears of it
            error = raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, error)

    threading.Thread(target=run, name="broadcast", daemon=True).start()
    return done
