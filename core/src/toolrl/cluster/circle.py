"""A group of torch.distributed that one broadcast after the other goes through: the trainer, who leads, and workers.

The group is nobody's default: the trainer may be a rank of another one, with FSDP2 over it. Its members meet at a
store in the leader's process, where each says that it is there before the leader lets them connect and begins; so
nobody waits inside of torch, where nothing can be told any more. While bytes are on their way each looks again and
again whether the leader has broken the transfer off, since gloo itself hears of a host that was cut off only when its
time is over.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import BroadcastOptions

from toolrl.cluster.messages import Meeting, TransferBrokenError
from toolrl_plugin_torch.sharding.rendezvous import listen

CONNECT_SECONDS = 60.0
"""For connections between members who have all said that they are there."""
LOOK_SECONDS = 0.5
"""How often a worker looks whether the transfer was broken off."""
SHORTEST, LONGEST, FOR_WORKERS = 0.0005, 0.02, 0.2
"""Seconds between two looks at what is waited for; workers that start come after many seconds."""
AHEAD = 2
"""Buckets under way at once: one is copied while the next one travels."""


class Circle:
    """This process's place in a group. Its methods block; one thread at a time may call them, and `break_off` any."""

    def __init__(self, meeting: Meeting) -> None:
        self.meeting = meeting
        self._broken = threading.Event()
        self._store: Any = None
        self._group: Any = None

    @property
    def broken(self) -> bool:
        """Whether a transfer was broken off here; the group is of no use any more."""
        return self._broken.is_set()

    def lead(self, turn: int, buckets: Iterable[Any]) -> None:
        """Send these tensors of bytes to all others, when all are there. Raises TransferBrokenError."""
        with self._telling():
            store = self._met()
            there = [f"{turn}/there/{rank}" for rank in range(1, self.meeting.size)]
            self._wait(lambda: store.check(there), "for workers to come", FOR_WORKERS)
            store.set(f"{turn}/go", "")
            self._connect()
            for work, _ in self._under_way(buckets):
                self._wait(work.is_completed, "for workers to take weights")
                work.wait()

    def follow(self, turn: int, sizes: Sequence[int]) -> Iterator[Any]:
        """The tensors of bytes that the leader sends, which have these sizes; each is good until the next is asked for.
        Raises TransferBrokenError."""
        with self._telling():
            store = self._met()
            store.set(f"{turn}/there/{self.meeting.rank}", "")
            self._wait(lambda: store.check([f"{turn}/go"]), "for the trainer to begin")
            self._connect()
            # Memory that is new costs more than what is written into it.
            room = [torch.empty(max(sizes, default=0), dtype=torch.uint8) for _ in sizes[:AHEAD]]
            for work, bucket in self._under_way(room[at % AHEAD][:size] for at, size in enumerate(sizes)):
                self._wait(work.is_completed, "for the trainer's weights")
                work.wait()
                yield bucket

    def break_off(self) -> None:
        """End what goes on in this process; it raises TransferBrokenError there."""
        self._broken.set()

    def close(self) -> None:
        """Leave the group. What it holds is freed elsewhere: gloo waits there for what is still under way."""
        self._broken.set()
        held = [self._group, self._store]
        self._group = self._store = None
        threading.Thread(target=held.clear, name="leave-circle", daemon=True).start()

    def _met(self) -> Any:
        """The store, under the group's name."""
        if self._store is None:
            self._store = dist.PrefixStore(self.meeting.name, reach(self.meeting.host, self.meeting.port))
        return self._store

    def _connect(self) -> None:
        if self._group is None:
            meeting = self.meeting
            options = ProcessGroupGloo._Options()
            options._devices = [_device(meeting)]
            options._timeout = timedelta(seconds=CONNECT_SECONDS)
            store = dist.PrefixStore("group", self._met())
            self._group = ProcessGroupGloo(store, meeting.rank, meeting.size, options)

    def _under_way(self, buckets: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
        """Broadcasts that were begun, with what they send or fill."""
        begun: deque[tuple[Any, Any]] = deque()
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        options.timeout = timedelta(seconds=self.meeting.timeout)
        for bucket in buckets:
            begun.append((self._group.broadcast([bucket], options), bucket))
            if len(begun) == AHEAD:
                yield begun.popleft()
        yield from begun

    def _wait(self, done: Callable[[], bool], what: str, longest: float = LONGEST) -> None:
        """Until it is done. Raises TransferBrokenError where it was broken off, or takes too long."""
        end, pause = time.monotonic() + self.meeting.timeout, SHORTEST
        look = time.monotonic() + LOOK_SECONDS
        while not done():
            now = time.monotonic()
            if self._broken.is_set():
                raise _broken("the trainer broke it off")
            if self.meeting.rank and now >= look:
                if self._store.check(["off"]):
                    raise _broken("the trainer broke it off")
                look = now + LOOK_SECONDS
            if now >= end:
                raise _broken(f"waited {self.meeting.timeout:g} seconds {what}")
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _telling(self) -> _Telling:
        return _Telling(self)


class _Telling:
    """What torch raises becomes TransferBrokenError, and the circle is broken."""

    def __init__(self, circle: Circle) -> None:
        self._circle = circle

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        self._circle.break_off()
        # gloo and the store raise RuntimeError alike where a connection broke and where nobody came.
        if isinstance(error, RuntimeError | ValueError | OSError):
            raise _broken(str(error).strip().partition("\n")[0] or type(error).__name__) from error


def _broken(reason: str) -> TransferBrokenError:
    return TransferBrokenError(
        f"a broadcast of weights was broken off: {reason}",
        where="cluster.weight_transfer",
        hint="All nodes must reach each other on any port; or take weight_transfer object_store.",
    )


def serve(host: str) -> Any:
    """A store at a free port of this machine, by which groups meet; `host` is the machine's address for the others."""
    return listen(host, 0, timedelta(seconds=CONNECT_SECONDS))


def reach(host: str, port: int) -> Any:
    """A line of its own to the store, as a line that somebody waits on is busy."""
    return dist.TCPStore(host, port, None, False, timeout=timedelta(seconds=CONNECT_SECONDS), wait_for_workers=False)


def _device(meeting: Meeting) -> Any:
    """What gloo listens on: the interface that the user names, or the address that leads to the others. gloo's own
    choice is that of the host's name, which on many machines is the loopback's."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    if interface:
        return ProcessGroupGloo.create_device(interface=interface)
    if not meeting.rank:
        return ProcessGroupGloo.create_device(hostname=meeting.host)
    with socket.create_connection((meeting.host, meeting.port), timeout=CONNECT_SECONDS) as line:
        return ProcessGroupGloo.create_device(hostname=line.getsockname()[0])
