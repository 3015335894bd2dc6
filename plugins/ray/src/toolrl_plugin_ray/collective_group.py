"""A torch.distributed group for broadcasts of weights: the trainer sends, and the workers receive.

It isn't the default group: the trainer may be a rank of another one, with FSDP2 over it. Members meet at a store in the
trainer's process, where each reports that it is there before the trainer connects and begins; so no member waits inside
of torch, where nothing can abort it. While bytes are under way each receiver checks whether the trainer has aborted the
transfer, since gloo itself notices a host that was cut off only at its timeout.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import BroadcastOptions

from toolrl_plugin_ray.messages import Rendezvous, TransferBrokenError
from toolrl_plugin_torch.sharding.rendezvous import listen

CONNECT_SECONDS = 60.0
"""For connections between members that have all reported."""
CHECK_SECONDS = 0.5
"""How often a receiver checks whether the transfer was aborted."""
SHORTEST_PAUSE, LONGEST_PAUSE, WORKERS_PAUSE = 0.0005, 0.02, 0.2
"""Seconds between two checks of what is waited for; workers that start come after many seconds."""
AHEAD = 2
"""Buckets under way at once: one is copied while the next one travels."""
_ABORTED = "aborted"


class CollectiveGroup:
    """This process's membership. One thread at a time may call its methods, and any thread `abort`."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self._broken = threading.Event()
        self._store: Any = None
        self._group: Any = None

    @property
    def broken(self) -> bool:
        """Whether a transfer was aborted here; the group can't be used again."""
        return self._broken.is_set()

    def send(self, sequence: int, buckets: Iterable[Any]) -> None:
        """Send these tensors of bytes to all receivers, when all are there. Raises TransferBrokenError."""
        with self._translated():
            store = self._meet()
            there = [f"{sequence}/there/{rank}" for rank in range(1, self.rendezvous.size)]
            self._wait(lambda: store.check(there), "for workers to come", WORKERS_PAUSE)
            store.set(f"{sequence}/go", "")
            self._connect()
            for work, _ in self._under_way(buckets):
                self._wait(work.is_completed, "for workers to take weights")
                work.wait()

    def receive(self, sequence: int, sizes: Sequence[int]) -> Iterator[Any]:
        """The tensors of bytes that the trainer sends, which have these sizes; each is valid until the next one. Raises
        TransferBrokenError."""
        with self._translated():
            store = self._meet()
            store.set(f"{sequence}/there/{self.rendezvous.rank}", "")
            self._wait(lambda: store.check([f"{sequence}/go"]), "for the trainer to begin")
            self._connect()
            # Memory that is new costs more than what is written into it.
            room = [torch.empty(max(sizes, default=0), dtype=torch.uint8) for _ in sizes[:AHEAD]]
            for work, bucket in self._under_way(room[at % AHEAD][:size] for at, size in enumerate(sizes)):
                self._wait(work.is_completed, "for the trainer's weights")
                work.wait()
                yield bucket

    def abort(self) -> None:
        """End the transfer in this process, which raises TransferBrokenError there; the trainer's ends all."""
        self._broken.set()

    def close(self) -> None:
        """Leave the group. It is freed in a thread: gloo waits there for what is still under way."""
        self._broken.set()
        held = [self._group, self._store]
        self._group = self._store = None
        threading.Thread(target=held.clear, name="leave-group", daemon=True).start()

    def _meet(self) -> Any:
        """The store, under the group's name. Each group has a connection of its own, as one that waits is busy."""
        if self._store is None:
            at = self.rendezvous
            timeout = timedelta(seconds=CONNECT_SECONDS)
            store = dist.TCPStore(at.host, at.port, None, False, timeout=timeout, wait_for_workers=False)
            self._store = dist.PrefixStore(at.name, store)
        return self._store

    def _connect(self) -> None:
        if self._group is None:
            options = ProcessGroupGloo._Options()
            options._devices = [_device(self.rendezvous)]
            options._timeout = timedelta(seconds=CONNECT_SECONDS)
            store = dist.PrefixStore("group", self._meet())
            self._group = ProcessGroupGloo(store, self.rendezvous.rank, self.rendezvous.size, options)

    def _under_way(self, buckets: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Broadcasts that were begun, with the tensor that each sends or fills."""
        begun: deque[tuple[Any, Any]] = deque()
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        options.timeout = timedelta(seconds=self.rendezvous.timeout)
        for bucket in buckets:
            begun.append((self._group.broadcast([bucket], options), bucket))
            if len(begun) == AHEAD:
                yield begun.popleft()
        yield from begun

    def _wait(self, done: Callable[[], bool], what: str, longest: float = LONGEST_PAUSE) -> None:
        """Until it is done. Raises TransferBrokenError where the transfer was aborted or makes no progress."""
        end, pause = time.monotonic() + self.rendezvous.timeout, SHORTEST_PAUSE
        check = time.monotonic() + CHECK_SECONDS
        while not done():
            now = time.monotonic()
            aborted = self._broken.is_set()
            if self.rendezvous.rank and now >= check:
                aborted = aborted or self._store.check([_ABORTED])
                check = now + CHECK_SECONDS
            if aborted:
                raise _broken("the trainer aborted it")
            if now >= end:
                raise _broken(f"waited {self.rendezvous.timeout:g} seconds {what}")
            time.sleep(pause)
            pause = min(2 * pause, longest)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """What torch raises becomes TransferBrokenError; after any error the group is broken."""
        try:
            yield
        except BaseException as error:
            self.abort()
            # gloo and the store raise plain RuntimeErrors where a connection broke and where no member came.
            if isinstance(error, RuntimeError | ValueError | OSError):
                raise _broken(str(error).strip().partition("\n")[0] or type(error).__name__) from error
            raise


class GroupStore:
    """The store at which groups meet, in the trainer's process."""

    def __init__(self, host: str) -> None:
        """At a free port; `host` is this machine's address for the workers."""
        self._store = listen(host, 0, timedelta(seconds=CONNECT_SECONDS))
        self.port: int = self._store.port

    def abort(self, name: str) -> None:
        """End the transfer of the group of this name for all receivers."""
        self._store.set(f"{name}/{_ABORTED}", "")


def _broken(reason: str) -> TransferBrokenError:
    return TransferBrokenError(
        f"a broadcast of weights was aborted: {reason}",
        where="cluster.rollout_workers",
        hint="All nodes must reach each other on any port.",
    )


def _device(rendezvous: Rendezvous) -> Any:
    """What gloo listens on: the interface that the user names, or the address that leads to the others. gloo's own
    choice is that of the host's name, which on many machines is the loopback's."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        return ProcessGroupGloo.create_device(interface=interface)
    if not rendezvous.rank:
        return ProcessGroupGloo.create_device(hostname=rendezvous.host)
    with socket.create_connection((rendezvous.host, rendezvous.port), timeout=CONNECT_SECONDS) as connection:
        return ProcessGroupGloo.create_device(hostname=connection.getsockname()[0])
