"""Weights by a broadcast: they arrive bit for bit, a copy that differs is found, and deaths stop no other worker."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("toolrl_plugin_torch")

import torch
import torch.distributed as dist
from broadcast_help import NEVER, Model, StandsStill, Weights, Worker, same, train

from toolrl.errors import EngineError
from toolrl_plugin_ray import replica
from toolrl_plugin_ray.broadcast import WeightBroadcast
from toolrl_plugin_ray.messages import WeightUpdate
from toolrl_plugin_ray.weights import trained, verify, write
from toolrl_plugin_ray.worker_supervisor import WorkerLostError
from toolrl_plugin_torch.sharding import collective_group, transfer
from toolrl_plugin_torch.sharding.collective_group import TransferBrokenError

MEMBER = Path(__file__).with_name("broadcast_member.py")


class Process(Worker):
    """A worker in a process of its own, which receives one message at a time."""

    def __init__(self, number: int, process: Any) -> None:
        super().__init__(number)
        self.process = process
        self.dies: signal.Signals | None = None

    async def update(self, update: WeightUpdate, part: WeightUpdate) -> None:
        self.parts.append(part)
        pickle.dump((part, self.dies), self.process.stdin)
        self.process.stdin.flush()
        answer = await asyncio.to_thread(self.process.stdout.readline)
        if answer == b"standing\n":  # A supervisor gives up a worker that doesn't answer.
            await asyncio.to_thread(os.waitid, os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
            raise WorkerLostError("it didn't answer")
        if not answer:
            raise WorkerLostError("it was killed")
        if answer != b"done\n":
            raise TransferBrokenError(answer.decode())


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Process]]:
    """They send several pieces, so that one may die between two."""
    monkeypatch.setattr(transfer, "BUCKET_BYTES", 1000)
    made = [subprocess.Popen([sys.executable, str(MEMBER)], stdin=-1, stdout=-1) for _ in range(2)]
    yield [Process(number + 1, it) for number, it in enumerate(made)]
    for process in made:
        process.kill()
        process.communicate()


def sender(*, timeout: float = 60.0) -> WeightBroadcast:
    return WeightBroadcast("127.0.0.1", timeout=timeout)


async def send(broadcast: WeightBroadcast, model: Any, version: int, workers: list[Any]) -> WeightUpdate:
    update = await broadcast.publish(Weights(model, version), version)
    await broadcast.send(update, workers)
    return update


# What travels.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
async def test_copies_have_the_weights_of_each_version(dtype: torch.dtype) -> None:
    # The trainer is a rank of a group of its own, as with FSDP2.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = Model(0, dtype=dtype)
        workers, broadcast = [Worker(number, Model(number + 1, dtype=dtype)) for number in range(3)], sender()
        for version in range(3):
            await send(broadcast, model, version, workers)
            assert all(same(model, it.model) for it in workers)
            train(model)
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()


async def test_frozen_tensors_do_not_travel_and_tied_ones_once() -> None:
    model, worker = Model(0), Worker(0, Model(0))
    assert trained(model).keys() == model.state_dict().keys() - {"head.weight"}
    for one in (model, worker.model):
        for name, parameter in one.named_parameters():
            parameter.requires_grad_("norm" in name)
    train(model.norm)

    broadcast = sender()
    await send(broadcast, model, 1, [worker])
    sent = {name for table, _ in broadcast._copies[1] for name, *_ in json.loads(table)}
    assert sent == {"norm.weight", "norm.bias", "scale"}
    assert same(model, worker.model)


@pytest.mark.parametrize("trained", [True, False])
async def test_a_tensor_that_differs_is_found(*, trained: bool) -> None:
    """Also one that no update changes, of which nothing travels."""
    model, copy = (Model(0).requires_grad_(trained) for _ in range(2))

    broadcast = sender()
    for name, tensor in list(model.state_dict().items())[:-1]:  # The last one is tied to the first.
        before = tensor.clone()
        tensor.view(-1)[0].add_(1)
        update = await broadcast.publish(Weights(model, 1), 1)
        with pytest.raises(EngineError, match=rf"version 1 a rollout worker doesn't .* tensors differ, '{name}'"):
            verify(update, copy)
        tensor.copy_(before)
    verify(await broadcast.publish(Weights(model, 2), 2), copy)


def test_weights_of_another_model_and_incomplete_ones_are_rejected() -> None:
    with pytest.raises(EngineError, match="trainer sends 'layers.3.weight' as float32 .* worker's model has nothing"):
        write(trained(Model(0, layers=4)), Model(0))
    with pytest.raises(EngineError, match=r"trainer sends 'norm.bias' as nothing, and the worker's model has float32"):
        write({name: it for name, it in trained(Model(0)).items() if name != "norm.bias"}, Model(0))


# Who gets it.


async def test_a_worker_that_comes_late_gets_the_weights_that_the_others_have() -> None:
    model, first, late = Model(0), Worker(0), Worker(1)

    broadcast = sender()
    update = await send(broadcast, model, 0, [first])
    train(model)  # The trainer trains already.
    async with broadcast.send_to_one(update) as part:
        await late.update(update, part)
    assert same(first.model, late.model)
    await send(broadcast, model, 1, [first, late])
    assert same(first.model, model)
    assert same(late.model, model)
    assert len(broadcast._copies) == 1, "older versions aren't kept"
    assert [len(first.parts), len(late.parts)] == [2, 2]


async def test_a_worker_that_is_lost_before_it_came_holds_up_no_other(caplog: pytest.LogCaptureFixture) -> None:
    model, workers = Model(0), [Worker(number) for number in range(3)]

    async def lost() -> None:
        raise WorkerLostError("it was killed")

    workers[1].reached = lost
    await send(sender(timeout=NEVER), model, 1, workers)
    assert [same(model, it.model) for it in workers] == [True, False, True]
    assert [len(it.parts) for it in workers] == [2, 1, 2]
    assert "version 1 is sent again to 2 rollout workers: rollout worker 1 was lost" in caplog.text


async def test_processes_that_end_or_stand_still_during_a_broadcast(
    processes: list[Process], caplog: pytest.LogCaptureFixture
) -> None:
    """One is killed, one stands still: gloo notices the first, and the second in an hour."""
    model, here, broadcast = Model(0), Worker(0), sender(timeout=NEVER)
    workers = [here, *processes]
    for version, how in ((1, signal.SIGKILL), (2, signal.SIGSTOP)):
        workers[1].dies = how  # type: ignore[attr-defined]
        await send(broadcast, model, version, workers)
        assert same(model, here.model)
        del workers[1]
        train(model)
    assert [len(it.parts) for it in (here, *processes)] == [4, 1, 3]
    for number in (1, 2):
        assert f"rollout worker {number} was lost" in caplog.text


async def test_a_group_that_never_works_ends_the_run_with_the_reason() -> None:
    worker = Worker(0)

    async def away() -> None:
        raise TransferBrokenError("the store can't be reached", where="cluster.rollout_workers", hint="Walls.")

    worker.reached = away

    broadcast = sender()
    update = await broadcast.publish(Weights(Model(0), 1), 1)
    with pytest.raises(EngineError, match=r"3 transfers .* and no worker died: the store can't") as raised:
        await broadcast.send(update, [worker])  # type: ignore[list-item]
    assert (raised.value.where, raised.value.hint) == ("cluster.rollout_workers", "Walls.")
    with pytest.raises(WorkerLostError, match="it couldn't be sent the weights: the store can't be reached"):
        async with broadcast.send_to_one(update) as part:
            await worker.update(update, part)


async def test_a_broken_transfer_leaves_the_weights_and_an_engine_is_held_while_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Engine(StandsStill):
        def __init__(self) -> None:
            self.updates: list[int] = []

        async def update_weights(self, weights: Any, version: int) -> None:
            assert self.held
            self.updates.append(version)

    class Policy:
        model = Model(0)

        def weights(self, version: int) -> Weights:
            return Weights(None, version)

    engine, broken = Engine(), True

    def torn(at: Any, tensors: Any) -> Iterator[Any]:
        assert not engine.held, "it samples on during a transfer"
        for number, piece in enumerate(collective_group.broadcast(at, tensors)):
            if at.rank and number > 5 and broken:
                raise TransferBrokenError("it broke")
            yield piece

    monkeypatch.setattr(transfer, "BUCKET_BYTES", 1000)
    monkeypatch.setattr(transfer, "broadcast", torn)
    made = replica.PolicyReplica(Policy(), Weights(None, 0), engine, None, None, hollow=False)  # type: ignore[arg-type]
    model, before = Model(1), {name: it.clone() for name, it in Policy.model.state_dict().items()}
    weights = sender()
    update = await weights.publish(Weights(model, 1), 1)
    async with weights.transfer(update, 1) as (parts, _):
        with pytest.raises(TransferBrokenError):
            await made.load(parts[0])
    assert all(torch.equal(it, before[name]) for name, it in Policy.model.state_dict().items())
    broken = False
    async with weights.transfer(update, 1) as (parts, _):
        await made.load(parts[0])
    assert same(model, Policy.model)
    assert (engine.held, engine.updates) == (0, [1])
