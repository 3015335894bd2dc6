"""The ranks of a torch.distributed process group: what `torchrun` starts, or one rank that takes the same path.

There are two groups of processes. The weights' group (NCCL between CUDA devices, gloo on a CPU) belongs to FSDP2. Ranks
exchange objects over a control group on gloo, as pickles with the name of the point of the run where they are sent, so
ranks at different points are detected. A rank that fails writes the reason into the rendezvous
store before it ends; the others lose the connection to it, read the reason and end with it. A rank that is silent for
`timeout` seconds ends them too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from toolrl.errors import ConfigError, ToolrlError, first_line
from toolrl.loop.ranks import LostRanksError, OtherRankError, RankError, Ranks
from toolrl.rollouts.source import RolloutWorkers
from toolrl_plugin_torch.device import pick_device
from toolrl_plugin_torch.sharding.rank_rollout import Rank0Rollout, SharedRunner
from toolrl_plugin_torch.sharding.rendezvous import rendezvous

T = TypeVar("T")

_READY, _FAILED, _AT = "ready", "failed", "at"
"""Keys of the store."""
_TRANSPORT = ("gloo", "nccl", "connection closed", "connection reset", "timed out", "broken pipe", "tcpstore")
"""Words of transport failures in the RuntimeErrors of torch.distributed, in small letters."""
_GRACE = timedelta(seconds=5)
"""A rank that lost another waits so long for that rank's reason."""


class _Failure(NamedTuple):
    """Why a rank ended, as it reports it to the others."""

    rank: int
    message: str
    hint: str | None = None

    @classmethod
    def of(cls, rank: int, error: BaseException) -> _Failure:
        if isinstance(error, ToolrlError):
            message = f"{error.where}: {error.message}" if error.where else error.message
            return cls(rank, message, error.hint)
        return cls(rank, f"{type(error).__name__}: {error}")

    def error(self) -> OtherRankError:
        error = OtherRankError(f"rank {self.rank} ended the run: {self.message}", hint=self.hint)
        error.rank = self.rank
        return error


class _Interrupted:
    """The value of a rank that was interrupted."""


class ProcessGroup(Ranks):
    """This process among those of torch.distributed. Use `join`."""

    distributed: ClassVar[bool] = True

    def __init__(self, store: dist.Store, rank: int, size: int, device: str, local: int, timeout: float) -> None:
        """Waits for all ranks. `device` is cpu or cuda, `local` the number of the rank's own on its host."""
        self.rank, self.size, self.local = rank, size, local
        self.device = device
        # By its number: other threads of this process have another current device.
        self.device_name = f"cuda:{local}" if device == "cuda" else None
        self._store = store
        self._timeout = timeout
        self._part: asyncio.Future[Any] | None = None
        self._interrupted = False
        wait = timedelta(seconds=timeout)
        # Shards that are kept in the host's memory are summed up there.
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=dist.PrefixStore("group", store), rank=rank, world_size=size, timeout=wait
        )
        self.control = dist.new_group(backend="gloo", timeout=wait)
        """Carries the objects that ranks exchange."""
        self.mesh = dist.init_device_mesh(device, (size,))
        """The ranks that FSDP2 shards weights over."""
        self._neighbours: dict[int, dist.ProcessGroup] = {}

    def neighbours(self, size: int) -> dist.ProcessGroup:
        """The group of `size` ranks with consecutive numbers that has this one; all ranks make it together."""
        if size not in self._neighbours:
            self._neighbours[size], _ = dist.new_subgroups(size, timeout=timedelta(seconds=self._timeout))
        return self._neighbours[size]

    def gather(self, value: T, what: str) -> list[T]:
        return self._gather(value, None, what)

    def _gather(self, value: T, own: Exception | None, what: str) -> list[T]:
        """The values of all ranks; `own` is this rank's error, which it sends in the place of a value. Raises it, or
        that of the first rank with one, on all."""
        try:
            packed = pickle.dumps((what, value if own is None else _Failure.of(self.rank, own)), protocol=5)
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            own = RankError(
                f"rank {self.rank} can't send what it has at {what!r}: {error}",
                hint="What data sets put on tasks, and tools into an episode's notes, must be picklable.",
            )
            packed = pickle.dumps((what, _Failure.of(self.rank, own)), protocol=5)
        try:
            self._store.set(f"{_AT}/{self.rank}", what)
            found = [pickle.loads(part) for part in self._exchange(packed)]
        except (RuntimeError, ValueError) as error:
            # gloo raises RuntimeError for a broken connection and for a timeout alike.
            raise self._lost(what, error) from error
        apart = [f"rank {rank} is at {other!r}" for rank, (other, _) in enumerate(found) if other != what]
        if apart:
            raise RankError(f"the ranks went apart: rank {self.rank} is at {what!r}, {', '.join(apart)}")
        if own is not None:
            raise own
        for _, sent in found:
            if isinstance(sent, _Failure):
                raise sent.error()
        return [sent for _, sent in found]

    def by_first(self, work: Callable[[], T], what: str) -> T:
        value, own = None, None
        if self.first:
            try:
                value = work()
            except Exception as error:  # noqa: BLE001 - raised when the others know of it
                own = error
        return self._gather(value, own, what)[0]  # type: ignore[return-value]

    async def all_of(self, work: Coroutine[Any, Any, T], what: str) -> list[T]:
        own: Exception | None = None
        value: Any = None
        self._part = asyncio.ensure_future(work)
        if self._interrupted:
            self._part.cancel()
        try:
            value = await self._part
        except asyncio.CancelledError:
            value = _Interrupted()
        except Exception as error:  # noqa: BLE001 - raised when the others know of it
            own = error
        finally:
            self._part = None
        # An interruption that came too late for the part itself still ends the run here.
        sent: Any = _Interrupted() if self._interrupted else value
        values: list[Any] = await asyncio.to_thread(self._gather, sent, own, what)
        if any(isinstance(each, _Interrupted) for each in values):
            self._interrupted = True
            raise asyncio.CancelledError
        return values

    async def from_first(self, work: Coroutine[Any, Any, T] | None, what: str) -> T:
        values: list[Any] = await self.all_of(asyncio.sleep(0) if work is None else work, what)
        return values[0]  # type: ignore[no-any-return]

    def _exchange(self, data: bytes) -> list[bytes]:
        """The bytes of each rank. `all_gather_object` would pad all to the longest, and the first rank has much."""
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        dist.all_gather(sizes, torch.tensor([mine.numel()]), group=self.control)
        parts = [mine if rank == self.rank else mine.new_empty(int(size)) for rank, size in enumerate(sizes)]
        for rank, part in enumerate(parts):
            dist.broadcast(part, src=rank, group=self.control)
        return [part.numpy().tobytes() for part in parts]

    def interrupt(self) -> None:
        """End the run at the next point where the ranks meet; call it on the event loop. All leave there, so that they
        write one checkpoint."""
        self._interrupted = True
        if self._part is not None:
            self._part.cancel()

    @contextmanager
    def explaining(self) -> Iterator[None]:
        try:
            yield
        except OtherRankError:
            raise
        except Exception as error:
            better = self._explained(error)
            if better is error:
                raise
            raise better from error

    def _explained(self, error: Exception) -> Exception:
        before = error.__context__
        if isinstance(error, RankError) and isinstance(before, Exception) and before is not error.__cause__:
            # It failed by itself, and lost the others while it cleaned up.
            error = before
        # Where a rank is gone, gloo and NCCL raise RuntimeError.
        if isinstance(error, RankError | RuntimeError):
            found = self._reported()
            if found is not None and found.rank != self.rank:
                return found.error()
            # gloo's errors have no class of their own.
            lost = isinstance(error, dist.DistError) or any(word in str(error).lower() for word in _TRANSPORT)
            if lost and not isinstance(error, RankError):
                error = self._lost("an exchange of weights or gradients", error)
        with contextlib.suppress(RuntimeError):  # The store may be gone with the process that held it.
            self._store.compare_set(_FAILED, "", json.dumps(_Failure.of(self.rank, error)))
        return error

    def runner(self, *arguments: Any, **options: Any) -> SharedRunner:
        return SharedRunner(self, *arguments, **options)

    def rollout(self, workers: RolloutWorkers | None) -> Rank0Rollout:
        return Rank0Rollout(self, workers)

    def use_device(self) -> None:
        if self.device == "cuda":
            torch.cuda.set_device(self.local)

    def leave(self) -> None:
        self.barrier("the end")
        dist.destroy_process_group()
        # With its last reference a group ends its threads. One that frees the tensors of the exchange above while
        # the interpreter ends would end the process by SIGABRT.
        del self.control, self.mesh, self._neighbours

    def _reported(self) -> _Failure | None:
        """The failure that a rank reports within a time."""
        with contextlib.suppress(RuntimeError):  # It is late, or the store is gone with the process that held it.
            self._store.wait([_FAILED], _GRACE)
            return _Failure(*json.loads(self._store.get(_FAILED)))
        return None

    def _lost(self, what: str, error: Exception) -> LostRanksError:
        seen = ""
        with contextlib.suppress(RuntimeError):
            for rank in range(self.size):
                if rank != self.rank and self._store.check([f"{_AT}/{rank}"]):
                    seen += f"; rank {rank} was last at {self._store.get(f'{_AT}/{rank}').decode()!r}"
        return LostRanksError(
            f"rank {self.rank} lost the other ranks at {what!r}: {first_line(error)}{seen}",
            hint=f"A rank waits {self._timeout:g} seconds for the others (cluster.rank_timeout). See the output of the "
            "rank that stayed behind.",
        )


def join(device: str, timeout: float, problem: Exception | None = None) -> ProcessGroup:
    """Join the processes that torchrun started, or a group of one. `device` is the config's. A rank that can't start
    passes its `problem`.

    Raises the problem, or OtherRankError for that of another rank; ConfigError for a device that the ranks can't share;
    RankError where not all come in time.
    """
    wait = timedelta(seconds=timeout)
    found = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", **os.environ}
    rank, size, local = (int(found[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if size == 1:
        if problem is not None:
            raise problem
        return ProcessGroup(dist.HashStore(), 0, 1, *_pick(device, local, size), timeout)
    try:
        store = rendezvous(rank, wait)
        store.set_timeout(wait)
        store = dist.PrefixStore("toolrl", store)
        kind = ""
        try:
            if problem is None:
                kind, local = _pick(device, local, size)
        except ConfigError as error:
            problem = error
        _check_ready(store, rank, size, problem)
        return ProcessGroup(store, rank, size, kind, local, timeout)
    except (RuntimeError, ValueError) as error:
        raise LostRanksError(
            f"rank {rank} of {size} didn't meet the others: {first_line(error)}",
            hint="Start them all by `torchrun --nproc-per-node N -m toolrl train CONFIG`, or have Ray place them by "
            "cluster.trainer_workers.",
        ) from error


def _check_ready(store: dist.Store, rank: int, size: int, problem: Exception | None) -> None:
    """Return if all ranks can start. Of a mistake that all ranks make, the first rank's error is raised."""
    store.set(f"{_READY}/{rank}", json.dumps(problem and _Failure.of(rank, problem)))
    reported = [json.loads(store.get(f"{_READY}/{other}")) for other in range(size)]
    broken = next((_Failure(*fields) for fields in reported if fields), None)
    if broken is not None:
        raise problem if problem is not None and broken.rank == rank else broken.error()


def _pick(device: str, local: int, size: int) -> tuple[str, int]:
    """cpu or cuda, and the device's number, made the current one of this thread. Raises ConfigError."""
    chosen = pick_device(device)
    if chosen.index is not None and size > 1:
        raise ConfigError(
            f"device: {device!r} is one device, and there are {size} ranks",
            hint=f"Set `device: {chosen.type}` or leave it out: each rank takes the device of its number on its host.",
        )
    local = local if chosen.index is None else chosen.index
    if chosen.type == "cuda":
        torch.cuda.set_device(pick_device(f"cuda:{local}"))
    return chosen.type, local
