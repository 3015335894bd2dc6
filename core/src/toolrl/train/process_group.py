"""The ranks of a torch.distributed process group: what `torchrun` starts, or one rank that takes the same path.

Two groups of processes are held. That of the weights (NCCL between CUDA devices, gloo on a CPU) belongs to FSDP2. What
ranks tell each other goes over a group of its own on gloo, as pickled objects with the name of the point of the run
where they are sent: ranks at different points are told apart instead of taking each other's objects. A rank that fails
writes why into the store that the processes met at before it ends; the others lose the connection to it, look there, and
end with its message. One that says nothing for `timeout` seconds ends them too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist

from toolrl.errors import ConfigError, ToolrlError
from toolrl.train.ranks import OtherRankError, RankError, Ranks

T = TypeVar("T")

_FAILED = "toolrl/failed"
_AT = "toolrl/at"
_GRACE = 5.0
"""Seconds that a rank which lost another looks for what that one says."""


def started_by_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one of several that are to train together."""
    return int(environment.get("WORLD_SIZE", "1")) > 1 and "RANK" in environment


@dataclass(frozen=True)
class _Failure:
    """Why a rank can't go on, as the others are told."""

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
        return OtherRankError(f"rank {self.rank} ended the run: {self.message}", hint=self.hint)


@dataclass(frozen=True)
class _Part:
    """What one rank made of its part."""

    value: Any = None
    failure: _Failure | None = None
    interrupted: bool = False


class ProcessGroup(Ranks):
    """This process among those of torch.distributed. Use `join`."""

    several: ClassVar[bool] = True

    def __init__(self, store: dist.Store, rank: int, size: int, device: str, timeout: float) -> None:
        """Waits for all ranks. `device` is cpu or cuda."""
        self.rank, self.size = rank, size
        self.sharded = True
        self.device = device
        self._store = store
        self._timeout = timeout
        self._part: asyncio.Future[Any] | None = None
        self._interrupted = False
        self._failed = False
        wait = timedelta(seconds=timeout)
        # Shards that are kept in the host's memory are summed up there.
        backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
        dist.init_process_group(
            backend, store=dist.PrefixStore("group", store), rank=rank, world_size=size, timeout=wait
        )
        self._talk = dist.new_group(backend="gloo", timeout=wait)
        self.mesh = dist.init_device_mesh(device, (size,))
        """What FSDP2 spreads weights over."""

    def gather(self, value: T, what: str) -> list[T]:
        found: list[Any] = [None] * self.size
        try:
            self._store.set(f"{_AT}/{self.rank}", what)
            dist.all_gather_object(found, (what, value), group=self._talk)
        except (RuntimeError, ValueError) as error:
            # gloo raises RuntimeError alike where a connection broke and where nobody came.
            raise self._lost(what, error) from error
        apart = [f"rank {rank} is at {other!r}" for rank, (other, _) in enumerate(found) if other != what]
        if apart:
            raise RankError(f"the ranks went apart: rank {self.rank} is at {what!r}, {', '.join(apart)}")
        return [value for _, value in found]

    def by_first(self, work: Callable[[], T], what: str) -> T:
        part, own = _Part(), None
        if self.first:
            try:
                part = _Part(work())
            except Exception as error:  # noqa: BLE001 - raised below, when the others know of it
                part, own = _Part(failure=_Failure.of(0, error)), error
        found = self.gather(part, what)[0]
        if own is not None:
            raise own
        if found.failure is not None:
            raise found.failure.error()
        return found.value  # type: ignore[no-any-return]

    async def all_of(self, work: Coroutine[Any, Any, T], what: str) -> list[T]:
        own: Exception | None = None
        self._part = asyncio.ensure_future(work)
        if self._interrupted:
            self._part.cancel()
        try:
            mine = _Part(await self._part)
        except asyncio.CancelledError:
            mine = _Part(interrupted=True)
        except Exception as error:  # noqa: BLE001 - raised below, when the others know of it
            mine, own = _Part(failure=_Failure.of(self.rank, error)), error
        finally:
            self._part = None
        # An interruption that came too late for the part itself still ends the run here.
        if self._interrupted and own is None:
            mine = _Part(interrupted=True)
        parts = await asyncio.to_thread(self.gather, mine, what)
        if own is not None:
            raise own
        for part in parts:
            if part.failure is not None:
                raise part.failure.error()
        if any(part.interrupted for part in parts):
            raise asyncio.CancelledError
        return [part.value for part in parts]

    def interrupt(self) -> None:
        """End the run at the next point where the ranks meet; call it on the event loop. All ranks leave there, so that
        they write the same checkpoint."""
        self._interrupted = True
        if self._part is not None:
            self._part.cancel()

    def explained(self, error: BaseException) -> BaseException:
        if isinstance(error, OtherRankError) or not isinstance(error, Exception):
            return error
        suffers = isinstance(error, RankError | RuntimeError) and not self._failed
        found = self._told(_GRACE if suffers else 0.0)
        if found is not None and found.rank != self.rank and suffers:
            return found.error()
        if isinstance(error, RankError) and isinstance(error.__context__, Exception):
            inner = error.__context__
            # It failed by itself and lost the others while it cleaned up.
            error = inner if isinstance(inner, ToolrlError) else error
        self._tell(error)
        return error

    def leave(self) -> None:
        """After the last exchange of a run that ended well."""
        self.barrier("the end")
        dist.destroy_process_group()

    def _tell(self, error: BaseException) -> None:
        self._failed = True
        failure = _Failure.of(self.rank, error)
        text = json.dumps({"rank": failure.rank, "message": failure.message, "hint": failure.hint})
        with contextlib.suppress(RuntimeError):  # The store may be gone with the process that held it.
            self._store.compare_set(_FAILED, "", text)

    def _told(self, patience: float) -> _Failure | None:
        """What the first rank that failed said; waits so many seconds for it."""
        end = time.monotonic() + patience
        while True:
            try:
                if self._store.check([_FAILED]):
                    return _Failure(**json.loads(self._store.get(_FAILED)))
            except RuntimeError:
                return None
            if time.monotonic() >= end:
                return None
            time.sleep(0.1)

    def _lost(self, what: str, error: Exception) -> RankError:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        return RankError(
            f"rank {self.rank} lost the other ranks at {what!r}: {first}{self._places()}",
            hint=f"A rank may wait {self._timeout:g} seconds for the others (cluster.timeout); the output of the one "
            "that stayed behind says why.",
        )

    def _places(self) -> str:
        """Where the other ranks were last seen."""
        seen = []
        with contextlib.suppress(RuntimeError):
            for rank in range(self.size):
                key = f"{_AT}/{rank}"
                if rank != self.rank and self._store.check([key]):
                    seen.append(f"rank {rank} was last at {self._store.get(key).decode()!r}")
        return f"; {', '.join(seen)}" if seen else ""


def join(device: str, timeout: float) -> ProcessGroup:
    """Meet the other processes that torchrun started; alone where there are none. `device` is the config's.

    Raises ConfigError for a device that several ranks can't share, RankError where not all come in time.
    """
    wait = timedelta(seconds=timeout)
    rank, size, local = (int(os.environ.get(name, fallback)) for name, fallback in _VARIABLES)
    kind = _kind(device, size)
    if kind == "cuda":
        if local >= torch.cuda.device_count():
            raise ConfigError(
                f"device: rank {rank} is number {local} on this host, which has {torch.cuda.device_count()} CUDA devices",
                hint="Start as many processes as there are devices (--nproc-per-node), or set `device: cpu`.",
            )
        torch.cuda.set_device(local)
    if size == 1:
        return ProcessGroup(dist.HashStore(), 0, 1, kind, timeout)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=wait))
        store.set_timeout(wait)
        return ProcessGroup(dist.PrefixStore("toolrl", store), rank, size, kind, timeout)
    except (RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise RankError(
            f"rank {rank} of {size} didn't meet the others: {first}",
            hint="Start them all by `torchrun --nproc-per-node N -m toolrl train CONFIG`.",
        ) from error


_VARIABLES = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))
"""By which torchrun tells a process which one it is, and what holds without."""


def _kind(device: str, size: int) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = device.partition(":")
    if number and size > 1:
        raise ConfigError(
            f"device: {device!r} is one device, and there are {size} ranks",
            hint=f"Set `device: {kind}` or leave it out: each rank takes the device of its number on its host.",
        )
    return kind
