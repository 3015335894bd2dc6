"""Weights by a broadcast: they arrive as they were, in groups that come and go; whoever dies, the others get them."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch
import torch.distributed as dist

from toolrl.cluster.broadcast import BroadcastCourier, Receiver, pack, unpack
from toolrl.cluster.handover import for_one, hand_over
from toolrl.cluster.line import WorkerLostError
from toolrl.cluster.messages import Handoff, TransferBrokenError
from toolrl.cluster.weights import verify
from toolrl.errors import EngineError

HOST = "127.0.0.1"
MEMBER = Path(__file__).with_name("broadcast_member.py")


class Weights:
    def __init__(self, model: Any, version: int) -> None:
        self.model = model
        self.version = version

    def module(self) -> Any:
        return self.model


class Worker:
    """A worker's line and its model, in this process; `reached` is what becomes of a message first."""

    def __init__(self, number: int, model: Any = None) -> None:
        self.number = number
        self.state = "ready"
        self.handle = object()
        self.model = model
        self.receiver = Receiver()
        self.told: list[Handoff] = []
        self.reached: Callable[[], Awaitable[None]] | None = None

    async def update(self, handoff: Handoff, part: Handoff) -> None:
        self.told.append(part)
        if self.reached is not None:
            await self.reached()
        await self.receiver.take(pickle.loads(pickle.dumps(part)), self.model)
        verify(part, self.model)

    @property
    def groups(self) -> list[str]:
        return [it.meeting.name for it in self.told if it.meeting is not None]


def made(tiny: Any, size: int = 20_000, timeout: float = 60.0) -> BroadcastCourier:
    return BroadcastCourier(HOST, timeout=timeout, bucket_bytes=size)


def run(main: Callable[[BroadcastCourier], Awaitable[None]], courier: BroadcastCourier) -> None:
    async def limited() -> None:
        try:
            await asyncio.wait_for(main(courier), 240)
        finally:
            courier.close()

    asyncio.run(limited())


def move(model: Any, by: float = 0.02) -> None:
    """What an update does."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(by * torch.randn_like(parameter))


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(it, other.state_dict()[name]) for name, it in one.state_dict().items())


def test_bytes_become_the_tensors_that_they_were() -> None:
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).bfloat16(),
        "c": torch.tensor(3),
        "d": torch.zeros(0, 4),
        "e": torch.tensor([True, False]),
        "f": torch.randn(4, 6).t(),
    }
    bucket, data = pack(tensors)
    found = unpack(pickle.loads(pickle.dumps(bucket)), data.clone())
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("size", [20_000, 2**30])
def test_copies_have_the_weights_of_each_version_and_the_group_is_kept(tiny: Any, size: int) -> None:
    # The trainer is a rank of a group of its own, as with FSDP2.
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = tiny.model("qwen3", seed=0)
        workers = [Worker(number, tiny.model("qwen3", seed=number + 1)) for number in range(3)]

        async def main(courier: BroadcastCourier) -> None:
            for version in range(3):
                handoff = await courier.publish(Weights(model, version), version)
                await hand_over(courier, handoff, workers)  # type: ignore[arg-type]
                assert all(same(model, it.model) for it in workers)
                move(model)

        run(main, made(tiny, size))
        assert {name for it in workers for name in it.groups} == {"circle-0"}
        assert dist.get_world_size() == 1
    finally:
        dist.destroy_process_group()


def test_who_comes_late_gets_the_weights_that_the_others_have(tiny: Any) -> None:
    model = tiny.model("llama", seed=0)
    first, late = Worker(0, tiny.model("llama", seed=1)), Worker(1, tiny.model("llama", seed=2))

    async def main(courier: BroadcastCourier) -> None:
        handoff = await courier.publish(Weights(model, 0), 0)
        await hand_over(courier, handoff, [first])  # type: ignore[list-item]
        move(model)  # The trainer trains already.
        async with for_one(courier, handoff, late.handle) as part:
            await late.update(handoff, part)
        assert same(first.model, late.model)
        handoff = await courier.publish(Weights(model, 1), 1)
        await hand_over(courier, handoff, [first, late])  # type: ignore[list-item]
        assert same(first.model, model)
        assert same(late.model, model)
        assert len(courier._copies) == 1, "what nobody can ask for any more isn't kept"

    run(main, made(tiny))
    assert first.groups == ["circle-0", "circle-2"]
    assert late.groups == ["circle-1", "circle-2"]


def test_frozen_tensors_do_not_travel(tiny: Any) -> None:
    model, worker = tiny.model("qwen3", seed=0), Worker(0, tiny.model("qwen3", seed=0))
    for one in (model, worker.model):
        for name, parameter in one.named_parameters():
            parameter.requires_grad_("norm" in name)
    move(model.model.norm)

    async def main(courier: BroadcastCourier) -> None:
        handoff = await courier.publish(Weights(model, 1), 1)
        assert sum(bucket.size for bucket in handoff.buckets) < 10_000
        await hand_over(courier, handoff, [worker])  # type: ignore[list-item]

    run(main, made(tiny))
    assert same(model, worker.model)


def test_a_worker_that_is_lost_before_it_came_holds_up_nobody(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    model = tiny.model("llama", seed=0)
    workers = [Worker(number, tiny.model("llama", seed=number + 1)) for number in range(3)]

    async def lost() -> None:
        await asyncio.sleep(0.2)
        raise WorkerLostError("it was killed")

    workers[1].reached = lost

    async def main(courier: BroadcastCourier) -> None:
        handoff = await courier.publish(Weights(model, 1), 1)
        await hand_over(courier, handoff, workers)  # type: ignore[arg-type]

    run(main, made(tiny, timeout=3600.0))
    assert [same(model, it.model) for it in workers] == [True, False, True]
    assert [it.groups for it in workers] == [["circle-0", "circle-1"], ["circle-0"], ["circle-0", "circle-1"]]
    said = "the transfer of version 1 broke off (rollout worker 1 was lost); it is made again for 2 rollout workers"
    assert said in caplog.text


def test_a_place_that_is_filled_anew_in_between_is_left_to_its_own_task(tiny: Any) -> None:
    model = tiny.model("llama", seed=0)
    workers = [Worker(number, tiny.model("llama", seed=number + 1)) for number in range(3)]

    async def lost() -> None:
        await asyncio.sleep(0.2)
        workers[2].state = "starting"
        raise WorkerLostError("it was killed")

    async def replaced() -> None:
        workers[1].handle = object()

    workers[0].reached, workers[1].reached = lost, replaced

    async def main(courier: BroadcastCourier) -> None:
        handoff = await courier.publish(Weights(model, 1), 1)
        await hand_over(courier, handoff, workers)  # type: ignore[arg-type]

    run(main, made(tiny))
    assert [it.groups for it in workers] == [["circle-0"]] * 3


def test_processes_that_end_or_stand_in_the_middle_of_a_broadcast(tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    """One is killed, one stands still: gloo hears of the first, and of the second in an hour."""
    model = tiny.model("llama", seed=0)
    processes = [subprocess.Popen([sys.executable, str(MEMBER)], stdin=-1, stdout=-1) for _ in range(2)]
    others = [Process(number + 1, it) for number, it in enumerate(processes)]
    here = Worker(0, tiny.model("llama", seed=1))

    async def main(courier: BroadcastCourier) -> None:
        workers = [here, *others]
        for version, how in ((1, signal.SIGKILL), (2, signal.SIGSTOP)):
            workers[1].dies = how  # type: ignore[attr-defined]
            handoff = await courier.publish(Weights(model, version), version)
            await hand_over(courier, handoff, workers)  # type: ignore[arg-type]
            assert same(model, here.model)
            del workers[1]
            move(model)

    try:
        with caplog.at_level(logging.WARNING):
            run(main, made(tiny, 1, timeout=3600.0))
        assert [len(it.told) for it in (here, *others)] == [4, 1, 3]
        for number in (1, 2):
            assert f"the transfer of version {number} broke off (rollout worker {number} was lost)" in caplog.text
    finally:
        for process in processes:
            process.kill()
            process.communicate()


class Process(Worker):
    """A worker in a process of its own, which has one message at a time."""

    def __init__(self, number: int, process: Any) -> None:
        super().__init__(number)
        self.process = process
        self.dies: signal.Signals | None = None

    async def update(self, handoff: Handoff, part: Handoff) -> None:
        self.told.append(part)
        pickle.dump((part, self.dies), self.process.stdin)
        self.process.stdin.flush()
        answer = await asyncio.to_thread(self.process.stdout.readline)
        if answer == b"standing\n":  # What a line does with a worker that says nothing for too long.
            await asyncio.to_thread(os.waitid, os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)
            await asyncio.sleep(0.5)
            raise WorkerLostError("it didn't answer")
        if not answer:
            raise WorkerLostError("it was killed")
        if answer != b"done\n":
            raise TransferBrokenError(answer.decode())


def test_those_who_live_wait_for_no_word_of_a_death_that_the_trainer_saw(tiny: Any) -> None:
    """gloo tells the trainer that a connection broke; that its worker is dead is told much later."""
    model = tiny.model("llama", seed=0)
    processes = [subprocess.Popen([sys.executable, str(MEMBER)], stdin=-1, stdout=-1) for _ in range(2)]
    dead, other = (Process(number + 1, it) for number, it in enumerate(processes))
    here = Worker(0, tiny.model("llama", seed=1))
    dead.dies = signal.SIGKILL
    broken = asyncio.Event()

    class Late(Process):
        async def update(self, handoff: Handoff, part: Handoff) -> None:
            try:
                await dead.update(handoff, part)
            finally:
                await broken.wait()

    class Hears(Worker):
        async def update(self, handoff: Handoff, part: Handoff) -> None:
            try:
                await super().update(handoff, part)
            except TransferBrokenError:
                broken.set()
                raise

    hears, late = Hears(0, here.model), Late(1, dead.process)

    async def main(courier: BroadcastCourier) -> None:
        handoff = await courier.publish(Weights(model, 1), 1)
        await hand_over(courier, handoff, [hears, late, other])  # type: ignore[list-item]
        assert same(model, hears.model)

    try:
        run(main, made(tiny, 1, timeout=3600.0))
        assert [len(it.told) for it in (hears, dead, other)] == [2, 1, 2]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def test_a_group_that_never_works_ends_the_run_with_the_reason(tiny: Any) -> None:
    model, worker = tiny.model("llama", seed=0), Worker(0, tiny.model("llama", seed=1))

    async def main(courier: BroadcastCourier) -> None:
        handoff = await courier.publish(Weights(model, 1), 1)

        async def away() -> None:
            raise TransferBrokenError("the store can't be reached", where="cluster.weight_transfer", hint="Walls.")

        worker.reached = away
        with pytest.raises(
            EngineError, match=r"version 1 broke off 3 times.*none of them died: the store can't"
        ) as told:
            await hand_over(courier, handoff, [worker])  # type: ignore[list-item]
        assert (told.value.where, told.value.hint) == ("cluster.weight_transfer", "Walls.")
        with pytest.raises(WorkerLostError, match="it couldn't be sent the weights: the store can't be reached"):
            async with for_one(courier, handoff, worker.handle) as part:
                await worker.update(handoff, part)

    run(main, made(tiny))
    assert worker.groups == ["circle-0", "circle-1", "circle-2", "circle-3"]


def test_nobody_waits_longer_than_the_limit(tiny: Any) -> None:
    """Neither the trainer for a worker that takes no weights, nor a worker for a trainer that doesn't begin."""
    model, worker = tiny.model("llama", seed=0), Worker(0, tiny.model("llama", seed=1))

    async def main(courier: BroadcastCourier) -> None:
        handoff = await courier.publish(Weights(model, 1), 1)
        async with courier.passing(handoff, [worker, "never comes"], lasting=True) as passing:
            with pytest.raises(TransferBrokenError, match="waited 0.3 seconds for the trainer to begin"):
                await worker.update(handoff, passing.parts[0])
        assert passing.circle.broken, "the trainer doesn't wait for ever either"

    run(main, made(tiny, timeout=0.3))


def test_a_store_that_is_gone_breaks_a_transfer_off(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, worker = tiny.model("llama", seed=0), Worker(0, tiny.model("llama", seed=1))
    monkeypatch.setattr("toolrl.cluster.circle.CONNECT_SECONDS", 0.5)

    async def main(courier: BroadcastCourier) -> None:
        handoff = await courier.publish(Weights(model, 1), 1)
        async with courier.passing(handoff, [worker.handle], lasting=True) as passing:
            passing.break_off()
        gone = passing.parts[0]
        courier.close()
        del passing
        await asyncio.sleep(0.2)
        with pytest.raises(TransferBrokenError, match="a broadcast of weights was broken off: "):
            await worker.update(handoff, gone)

    run(main, made(tiny))


def test_an_engine_stands_still_while_its_weights_are_half_written(tiny: Any) -> None:
    from toolrl.replica import _Replica

    class Engine:
        def __init__(self) -> None:
            self.held = 0
            self.updates: list[int] = []

        @asynccontextmanager
        async def hold(self) -> Any:
            self.held += 1
            yield
            self.held -= 1

        async def update_weights(self, weights: Any, version: int) -> None:
            assert self.held
            self.updates.append(version)

    class Breaks(Receiver):
        times = 0

        async def take(self, handoff: Handoff, module: Any) -> None:
            self.times += 1
            if self.times < 3:
                raise TransferBrokenError("it broke")

    class Policy:
        model = tiny.model("llama", seed=0)

    async def main() -> None:
        engine, nothing = Engine(), Weights(None, 0)
        nothing.close = lambda: None  # type: ignore[attr-defined]
        handoff = Handoff(1)
        replica = _Replica(Policy(), nothing, engine, None, None, Breaks())  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(TransferBrokenError):
                await replica.load(handoff)
            assert engine.held == 1
        await replica.load(handoff)
        assert engine.held == 0
        assert engine.updates == [1]
        replica._receiver.times = 0  # type: ignore[attr-defined]
        with pytest.raises(TransferBrokenError):
            await replica.load(handoff)
        await replica.close()
        assert engine.held == 0

    asyncio.run(main())
