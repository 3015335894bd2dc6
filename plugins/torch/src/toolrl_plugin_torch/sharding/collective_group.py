"""A broadcast of tensors from the trainer to workers, by torch.distributed.

Each broadcast has a group of its own, beside the default one: the trainer may be a rank of that, with FSDP2 over it.
Its members meet at a store in the trainer's process. Closing the store aborts the broadcast for all: members that wait
there wake with an error, and members that move bytes ask for it again and again, since gloo itself notices a host that
was cut off only at its timeout.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed import ProcessGroupGloo
from torch.distributed.distributed_c10d import BroadcastOptions

from toolrl.errors import EngineError, first_line

Backend = Literal["gloo", "nccl"]

CONNECT_SECONDS = 60.0
"""For connections between members that have met."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.0005, 0.02
"""Seconds between two looks at a tensor that is under way."""

_ERROR_HANDLING, _CLEAN_UP_ONLY = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"
"""What torch does when a collective fails: abort the communicators, and go on."""
_ENVIRONMENT = threading.Lock()


@dataclass(frozen=True)
class Rendezvous:
    """Where the trainer and the receivers of weights meet for a broadcast."""

    host: str
    port: int
    """Of the store in the trainer's process."""
    rank: int
    """The receiver's; the trainer's is 0."""
    size: int
    timeout: float
    """Seconds without progress after which the broadcast is aborted."""
    backend: Backend = "gloo"
    """gloo broadcasts tensors of the host, nccl those of CUDA devices, each member's on a device of its own."""


class TransferBrokenError(EngineError):
    """A broadcast was aborted before all tensors had arrived. It can be repeated."""


def broadcast(at: Rendezvous, tensors: Iterable[Any]) -> Iterator[Any]:
    """Send these tensors as rank 0, or fill them as another: gives each when it has been sent or filled, before the
    next one is asked for. All must be contiguous on the device that the backend takes. Raises
    TransferBrokenError where the store was closed or nothing moves for the time limit."""
    member = _Member(at)
    try:
        yield from member.broadcast(tensors)
    except (RuntimeError, ValueError, OSError) as error:  # gloo and the store raise plain RuntimeErrors
        raise TransferBrokenError(
            f"a broadcast of weights was aborted: {first_line(error)}",
            where="engine",
            hint="All nodes of a cluster must reach each other on any port.",
        ) from error
    finally:
        held = dict(vars(member))
        vars(member).clear()
        # In a thread: gloo waits there for what is still under way.
        threading.Thread(target=held.clear, name="leave-group", daemon=True).start()


class _Member:
    """What a process holds of a group. No frame has the group itself, as tracebacks would keep it."""

    def __init__(self, at: Rendezvous) -> None:
        self.at = at

    def broadcast(self, tensors: Iterable[Any]) -> Iterator[Any]:
        """As the function."""
        at, connecting = self.at, timedelta(seconds=CONNECT_SECONDS)
        device = _device(at)
        self.store = dist.TCPStore(at.host, at.port, None, False, timeout=connecting, wait_for_workers=False)
        self.store.set_timeout(timedelta(seconds=at.timeout))
        self._meet("begin")  # So that no member waits long inside of gloo, for one that died on its way.
        self.group = _group(at, dist.PrefixStore("group", self.store), device, connecting)
        for tensor in tensors:
            yield self._finished(self._begin(tensor), tensor)
        self._meet("end")  # A member that leaves sooner could cut off those that it hands tensors on to.

    def _meet(self, point: str) -> None:
        self.store.set(f"{point}/{self.at.rank}", "")
        self.store.wait([f"{point}/{rank}" for rank in range(self.at.size)])

    def _begin(self, tensor: Any) -> Any:
        options = BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        options.timeout = timedelta(seconds=self.at.timeout)
        return self.group.broadcast([tensor], options)

    def _finished(self, work: Any, tensor: Any) -> Any:
        end, pause = time.monotonic() + self.at.timeout, SHORTEST_PAUSE
        while not work.is_completed():
            self.store.check(["begin/0"])  # Raises once the store is closed.
            if time.monotonic() >= end:
                raise TimeoutError(f"no tensor arrived for {self.at.timeout:g} seconds")
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        work.wait()
        if self.at.backend == "nccl" and (error := work.exception()) is not None:
            raise RuntimeError(str(error))  # `wait` only orders streams, and says nothing of a broken communicator.
        return tensor


def _group(at: Rendezvous, store: Any, device: Any, connecting: timedelta) -> Any:
    if at.backend == "nccl":
        return _nccl_group(store, at)
    options = ProcessGroupGloo._Options()
    options._devices, options._timeout = [device], connecting
    return ProcessGroupGloo(store, at.rank, at.size, options)


def _nccl_group(store: Any, at: Rendezvous) -> Any:
    """A group whose failure ends no process. By default NCCL's watchdog does: a worker that dies would take the trainer
    along. The mode is read from the environment when a group is made, so only this group has it."""
    with _ENVIRONMENT:
        before = os.environ.get(_ERROR_HANDLING)
        os.environ[_ERROR_HANDLING] = _CLEAN_UP_ONLY
        try:
            return dist.ProcessGroupNCCL(store, at.rank, at.size, timedelta(seconds=at.timeout))
        finally:
            if before is None:
                del os.environ[_ERROR_HANDLING]
            else:
                os.environ[_ERROR_HANDLING] = before


def _device(at: Rendezvous) -> Any:
    """What gloo listens on: the interface that the user names, or the address that leads to the store. gloo's own
    choice is that of the host's name, which on many machines is the loopback's."""
    # Also finds a store that is closed already, which torch would try to reach until its timeout.
    with socket.create_connection((at.host, at.port), timeout=CONNECT_SECONDS) as connection:
        address = connection.getsockname()[0]
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    return ProcessGroupGloo.create_device(**({"interface": interface} if interface else {"hostname": address}))
