"""What the arithmetic and the simulation of large runs are fed with: costs of the parts that every run has.

    python tests/benchmarks/scale_inputs.py                 # prints a table
    python tests/benchmarks/scale_inputs.py --json OUT.json # a file for `simulate_scale.py --measured`

The driver of a run does a little for every episode that a worker finishes: it hears of it, takes in its group, writes
it down, credits it. Each of these is measured by itself, as processor time of this process, on episodes of four turns
and 3,328 tokens in groups of 16. Besides: how fast weights go into and out of the form in which they travel; how fast
Ray brings an object from one node to another, here over the loopback; how many permits a second the limits of a cluster
give. The parts with Ray are left out where it isn't installed; `simulate_scale.py` then takes its own figures for them.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import multiprocessing
import pickle
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save
from scale_parameters import Measured

from toolrl.cluster.limit_server import LimitServer
from toolrl.cluster.line import Job
from toolrl.cluster.messages import Bucket, GroupOrder, Handoff, Report, pack_group, unpack_group
from toolrl.cluster.pool import WorkerPool
from toolrl.cluster.weights import BUCKET_BYTES, buckets, receive
from toolrl.config.algorithm import AlgorithmConfig
from toolrl.report.episodes import EpisodeStore
from toolrl.rollout.environment import Limits
from toolrl.rollout.source import Oversight
from toolrl.testing.fakes import make_task
from toolrl.tools.rate_limits import LimitSpec
from toolrl.types import CallRecord, Episode, Group, Message, RewardEntry, Segment, ToolCall, ToolResult, Turn
from toolrl_plugin_torch.batch import episode_sample
from toolrl_plugin_torch.objective.credit import credit

GROUP, PROMPT, TURNS, SAMPLED, RESULT = 16, 512, 4, 512, 256
"""Episodes of a group; tokens of a prompt, of a turn, and of what a tool answers."""
LETTERS = 4
"""A token."""
CALLS = 400
"""To a worker over Ray, of each kind."""


def a_group() -> Group:
    """A group of a real run's size, with numbers that are all different."""
    task = make_task("word" * PROMPT)
    return Group("train-1/0/task-0", task, tuple(_episode(task, index) for index in range(GROUP)))


def _episode(task: Any, index: int) -> Episode:
    mask, turns, messages = [0] * PROMPT, [], [Message("user", "word" * PROMPT)]
    for number in range(TURNS):
        begin = len(mask)
        mask += [1] * SAMPLED
        text = f"{number} word"[:LETTERS] * SAMPLED
        call = ToolCall("search", {"query": "what is it"}, span=(0, len(text)), raw=text)
        last = number == TURNS - 1
        records = () if last else (CallRecord(call, ToolResult("word" * RESULT), 0.5),)
        segment = Segment("model", text, (begin, len(mask)))
        turns.append(Turn(number, (segment,), () if last else (call,), records, "stop", text))
        messages.append(Message("assistant", text))
        if not last:
            mask += [0] * RESULT
            messages.append(Message("tool", "word" * RESULT))
    count = len(mask)
    return Episode(
        f"train-1/0/task-0#{index}", task, "default", "train-1/0/task-0", index,
        ids=tuple((7919 * place + index) % 151_000 for place in range(count)), loss_mask=tuple(mask),
        logprobs=tuple(-1.0 / (place + index + 2) if mask[place] else 0.0 for place in range(count)),
        weight_versions=tuple(mask[place] - 1 for place in range(count)), prompt_length=PROMPT, turns=tuple(turns),
        messages=tuple(messages), stop_reason="answer",
        rewards=(RewardEntry(None, "reward:bench", float(index % 2)),),
    )  # fmt: skip


def seconds_of(work: Callable[[], Any], rounds: int = 7) -> float:
    """Median processor time, after one to warm up."""
    work()
    seen = []
    for _ in range(rounds):
        begin = time.process_time()
        work()
        seen.append(time.process_time() - begin)
    return statistics.median(seen)


def episodes_part() -> dict[str, float]:
    """What the driver does with a finished group, and what ranks do to tell each other of one."""
    group = a_group()
    data, plain = pack_group(group), pickle.dumps(group)
    algorithm = AlgorithmConfig(preset="grpo")

    def recorded() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = EpisodeStore(Path(folder))
            for episode in group.episodes:
                store.add(episode)
            store.close_step(1, "train")

    def credited() -> None:
        found = credit([group], algorithm, None)
        for episode, advantage in zip(found.episodes, found.advantages, strict=True):
            episode_sample(episode, advantage)

    return {
        "bytes_an_episode": len(data) / GROUP,
        "unpack_s": seconds_of(lambda: unpack_group(data)) / GROUP,
        "pickled_bytes_an_episode": len(plain) / GROUP,
        "pickle_s": seconds_of(lambda: pickle.dumps(group)) / GROUP,
        "unpickle_s": seconds_of(lambda: pickle.loads(plain)) / GROUP,
        "record_s": seconds_of(recorded) / GROUP,
        "credit_s": seconds_of(credited) / GROUP,
    }


async def deal_part(workers: int) -> float:
    """Seconds to choose a worker for a group, where there are so many with room."""
    made = WorkerPool(_no_process, lambda number: None, None, Oversight(0.0), workers=workers, concurrency=32)  # type: ignore[arg-type, return-value]
    for line in made._lines:
        line.state = "ready"
    task, limits, loop = make_task(), Limits(max_turn_tokens=1, max_episode_tokens=2), asyncio.get_running_loop()
    for key in range(2 * workers):
        made._waiting.append(Job(GroupOrder(key, task, key, GROUP, limits, "r"), loop.create_future(), GROUP))
    begin = time.process_time()
    made._deal()
    seconds = (time.process_time() - begin) / (2 * workers)
    await asyncio.gather(*made._helping)
    return seconds


def _no_process(number: int) -> Any:
    raise AssertionError("nobody starts it")


def transfer_part(gigabytes: float) -> dict[str, float]:
    """Bytes a second, of this process's processor time: into buckets, and out of them."""
    layers = max(1, int(gigabytes * 2**30 / (4 * 4096 * 4096)))
    module = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096, bias=False) for _ in range(layers)))
    size = sum(parameter.nbytes for parameter in module.parameters())
    made: list[bytes] = []

    def published() -> None:
        # As `StoreCourier` does it; the copy is the store's.
        made[:] = [
            data for piece in buckets(module.state_dict(), set(), BUCKET_BYTES) if bytearray(data := save(piece))
        ]

    packed = seconds_of(published, rounds=3)
    handoff = Handoff(1, tuple(Bucket(len(data), data=data) for data in made))
    unpacked = seconds_of(lambda: asyncio.run(receive(handoff, module)), rounds=3)
    return {"publish_bytes_s": size / packed, "receive_bytes_s": size / unpacked}


def _broadcast(rank: int, port: int, results: Any) -> None:
    """One of two processes, of which the first sends."""
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    bucket = torch.ones(64 * 2**20, dtype=torch.uint8)
    seen = []
    for _ in range(12):
        dist.barrier()
        begin = time.perf_counter()
        dist.broadcast(bucket, src=0)
        seen.append(time.perf_counter() - begin)
    if rank:
        results.put(bucket.nbytes / statistics.median(seen[2:]))
    dist.destroy_process_group()


def gloo_part() -> float:
    """Bytes a second of a broadcast between two processes."""
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = context.SimpleQueue()
    both = [context.Process(target=_broadcast, args=(rank, port, results)) for rank in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    if results.empty():
        raise RuntimeError("the broadcast by gloo failed; its processes said why")
    rate: float = results.get()
    return rate


async def server_part(calls: int) -> float:
    """Tool calls a second that the limits' server alone could see to: a message with a wish, one with a return."""
    server = LimitServer()
    await server.hello("a", {"limit": LimitSpec(concurrency=64)}, {}, {})
    begin = time.process_time()
    for number in range(calls):
        await server.update("a", [("want", str(number), "limit")])
        await server.update("a", [("drop", str(number), "")])
    seconds = time.process_time() - begin
    if server._watch is not None:
        server._watch.cancel()
        with suppress(asyncio.CancelledError):
            await server._watch
    return calls / seconds


class Teller:
    """A worker that has something to say at once."""

    async def poll(self, seconds: float) -> Report:
        return Report(ended={1: 1}, status={"running": 1, "waiting": 0, "ended": 1, "failed": 0})

    async def bring(self, size: int) -> Report:
        return Report(done=[(1, bytes(size))])

    async def deal(self, orders: Sequence[GroupOrder]) -> None:
        pass

    async def read(self, references: Sequence[Any]) -> float:
        begin = time.perf_counter()
        for reference in references:
            await reference
        return time.perf_counter() - begin


def ray_part(megabytes: int) -> dict[str, float]:
    """Messages, objects from node to node, and permits over a Ray cluster of two nodes on this machine."""
    import bench_limiter
    import ray
    from ray.cluster_utils import Cluster

    from toolrl.cluster.ray_workers import RayHandle, put

    for module in (sys.modules[__name__], bench_limiter):
        ray.cloudpickle.register_pickle_by_value(module)
    store = 3 * megabytes * 2**20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": store})
    cluster.add_node(num_cpus=1, resources={"far": 1}, object_store_memory=store)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        actor = ray.remote(Teller).options(num_cpus=0, resources={"far": 0.1}).remote()
        handle = RayHandle(actor, Path("/nowhere"))
        found = asyncio.run(_messages(handle))
        data = [put(bytes(64 * 2**20)) for _ in range(megabytes // 64)]
        # In a list, so that they aren't brought before the clock runs; the first one makes the nodes know each other.
        asyncio.run(_read(handle, [put(bytes(2**20))]))
        seconds = asyncio.run(_read(handle, data))
        found["node_bytes_s"] = len(data) * 64 * 2**20 / seconds
        run = bench_limiter.cluster_ways(ray)
        run("toolrl", 64, 0.5)
        found["permits_s"] = statistics.median(run("toolrl", 64, 1.0) for _ in range(3))
        found["contended_permits_s"] = statistics.median(run("toolrl", 8, 1.0) for _ in range(3))
        return found
    finally:
        ray.shutdown()
        cluster.shutdown()


async def _read(handle: Any, data: Sequence[Any]) -> float:
    seconds: float = await handle.call("read", list(data))
    return seconds


async def _messages(handle: Any) -> dict[str, float]:
    """Processor time of this process for a message to a worker and its answer."""
    order = GroupOrder(1, make_task("word" * PROMPT), 0, GROUP, Limits(max_turn_tokens=1, max_episode_tokens=2), "r")
    size = len(pack_group(a_group()))

    async def cost(calls: int, method: str, *arguments: Any) -> float:
        for _ in range(10):
            await handle.call(method, *arguments)
        begin = time.process_time()
        for _ in range(calls):
            await handle.call(method, *arguments)
        return (time.process_time() - begin) / calls

    told, dealt = await cost(CALLS, "poll", 5.0), await cost(CALLS, "deal", [order])
    brought = await cost(CALLS // 4, "bring", size)
    return {"report_s": told, "order_s": dealt, "bring_s": max(brought - told, 0.0) / GROUP}


def measure(gigabytes: float) -> dict[str, float]:
    found = episodes_part()
    found |= {f"deal_{workers}_s": asyncio.run(deal_part(workers)) for workers in (8, 64, 512)}
    found |= transfer_part(gigabytes)
    found["gloo_bytes_s"] = gloo_part()
    found["server_calls_s"] = asyncio.run(server_part(20_000))
    if importlib.util.find_spec("ray") is not None:
        found |= ray_part(512)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of weights that are packed and unpacked")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    options = parser.parse_args(argv)
    found = measure(options.gigabytes)
    known = {field.name for field in fields(Measured)}
    for name, value in found.items():
        print(f"{name:28} {value:14.6g}{'' if name in known else '   (not an input)'}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
