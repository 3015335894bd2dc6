"""A broadcast over NCCL whose peer dies: torch's watchdog must not end the process, and nothing half sent is taken."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from toolrl_plugin_torch.sharding import collective_group
from toolrl_plugin_torch.sharding.collective_group import Rendezvous, TransferBrokenError, broadcast
from toolrl_plugin_torch.sharding.rendezvous import listen

MODE = "TORCH_NCCL_ASYNC_ERROR_HANDLING"


class Work:
    """As torch's of NCCL after its communicator was aborted: it is completed, and waiting for it raises nothing."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    def is_completed(self) -> bool:
        return True

    def wait(self) -> None:
        pass

    def exception(self) -> Exception | None:
        return self._error


class StandIn:
    """ProcessGroupNCCL, which breaks at the tensor of this number."""

    modes: tuple[str | None, ...] = ()
    breaks_at: int | None = None

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        StandIn.modes += (os.environ.get(MODE),)
        self._count = 0

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Work:
        self._count += 1
        return Work(RuntimeError("NCCL communicator was aborted") if self._count == self.breaks_at else None)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> type[StandIn]:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", StandIn, raising=False)
    monkeypatch.setattr(StandIn, "modes", ())
    return StandIn


def meet(count: int) -> list[int]:
    """How many tensors arrived at each of two members; a member that failed raises."""
    store = [listen("127.0.0.1", 0, timedelta(seconds=30))]
    arrived, errors = [0, 0], []

    def member(rank: int) -> None:
        at = Rendezvous("127.0.0.1", store[0].port, rank, 2, 30.0, "nccl")
        try:
            for _ in broadcast(at, (torch.zeros(1) for _ in range(count))):
                arrived[rank] += 1
        except TransferBrokenError as error:
            errors.append(error)

    threads = [threading.Thread(target=member, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        assert arrived == [2, 2]
        raise errors[0]
    return arrived


@pytest.mark.parametrize("users", [None, "1"])
def test_a_failure_ends_no_process_and_other_groups_keep_their_mode(
    stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch, users: str | None
) -> None:
    if users is None:
        monkeypatch.delenv(MODE, raising=False)
    else:
        monkeypatch.setenv(MODE, users)
    assert meet(3) == [3, 3]
    assert stand_in.modes == ("2", "2"), "torch's CleanUpOnly"
    assert os.environ.get(MODE) == users


def test_a_tensor_of_a_broken_communicator_has_not_arrived(
    stand_in: type[StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StandIn, "breaks_at", 3)
    with pytest.raises(TransferBrokenError, match="communicator was aborted"):
        meet(5)


def test_without_nccl_nothing_of_it_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MODE, raising=False)
    made = []
    monkeypatch.setattr(collective_group, "_nccl_group", lambda *given: made.append(given))
    store = listen("127.0.0.1", 0, timedelta(seconds=30))
    assert len(list(broadcast(Rendezvous("127.0.0.1", store.port, 0, 1, 30.0), [torch.zeros(1)]))) == 1
    assert not made
