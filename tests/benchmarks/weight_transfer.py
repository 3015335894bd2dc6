"""How fast new weights come to rollout workers, by each way of `cluster.weight_transfer`.

    python tests/benchmarks/weight_transfer.py                    # 100 MB, two workers on this machine
    python tests/benchmarks/weight_transfer.py --mb 400 --json OUT.json

An update is what a run waits for: the trainer's weights are made ready, all workers have written them into their model,
and have compared a fixed text's log-probabilities. A llama of random weights in float32; the ways in turned order, each
with workers of its own that stand idle while others are measured; medians. `bytes` is the size of the state, once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

try:
    import ray
except ModuleNotFoundError:
    raise SystemExit("ray isn't installed: pip install 'toolrl[cluster]'") from None
import torch
from ray_overhead import Plain
from toolrl.cluster.broadcast import Receiver
from toolrl.cluster.messages import Handoff, WorkerSpec
from toolrl.cluster.pool import WorkerPool
from toolrl.cluster.ray_workers import RayCluster
from toolrl.cluster.rollout import courier_of
from toolrl.cluster.weights import verify
from transformers import LlamaConfig, LlamaForCausalLM

from toolrl.config.load import LoadedConfig
from toolrl.config.model import Config
from toolrl.rollout.environment import Environment
from toolrl.rollout.runner import Runner
from toolrl.rollout.source import Oversight
from toolrl.tools.toolbox import ToolBox
from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine

WAYS = ("object_store", "file", "broadcast")
VOCABULARY, LENGTH = 4000, 128


def model(megabytes: int, seed: int) -> Any:
    """A model of about so many MB in float32."""
    torch.manual_seed(seed)
    wide = 512
    layer = 4 * wide * wide + 3 * wide * 3 * wide
    layers = max(1, round((megabytes * 1e6 / 4 - VOCABULARY * wide) / layer))
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=wide, intermediate_size=3 * wide, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=8, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class Weights:
    """A WeightSource of what couriers ask for."""

    def __init__(self, module: Any, version: int) -> None:
        self._module, self.version = module, version

    def module(self) -> Any:
        return self._module


class Replica:
    """What takes weights on a worker here: no engine."""

    def __init__(self, module: Any) -> None:
        environment = Environment("default", Plain(), FakeChatFormat(), ToolBox([]))
        self.runner = Runner(ScriptedEngine(lambda prompt: "x"), {"default": environment}, concurrency=1)
        self._module, self._receiver = module, Receiver()

    async def load(self, handoff: Handoff) -> None:
        await self._receiver.take(handoff, self._module)
        verify(handoff, self._module)

    def status(self) -> dict[str, Any]:
        return {}


@asynccontextmanager
async def replica(spec: WorkerSpec, handoff: Handoff) -> AsyncIterator[Replica]:
    """`source` carries the model's size."""
    torch.set_num_threads(1)
    made = Replica(model(int(spec.source), seed=1))
    await made.load(handoff)
    yield made


@asynccontextmanager
async def pool(cluster: RayCluster, config: Config, megabytes: int, folder: Path, module: Any) -> AsyncIterator[Any]:
    loaded = LoadedConfig(config, {}, "-")
    spec = WorkerSpec(
        0, loaded, "weight_transfer:replica", str(megabytes), "float32", "cpu", str(Path.cwd()), "/nowhere"
    )
    made = WorkerPool(
        lambda number: cluster.spawn(number, spec.log_path),
        lambda number: replace(spec, number=number),
        courier_of(config.cluster, folder, VOCABULARY, LENGTH),
        Oversight(0.0),
        workers=config.cluster.rollout_workers,
        concurrency=1,
    )
    try:
        await made.start(Weights(module, 0), 0)
        yield made
    finally:
        await made.stop()


def config_of(way: str, workers: int) -> Config:
    cluster = {"rollout_workers": workers, "worker_cpus": 0, "weight_transfer": way}
    return Config.model_validate({"model": {"path": "-"}, "environments": {"default": {}}, "cluster": cluster})


async def measure(megabytes: int, workers: int, repeats: int) -> dict[str, Any]:
    module = model(megabytes, seed=0)
    size = sum(parameter.nbytes for parameter in module.parameters())
    cluster = RayCluster(config_of(WAYS[0], workers).cluster, 100 * 2**20 + 4 * size)
    cluster.join()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with AsyncExitStack() as stack:
                pools = {
                    way: await stack.enter_async_context(
                        pool(cluster, config_of(way, workers), megabytes, Path(folder) / way, module)
                    )
                    for way in WAYS
                }
                for version in range(1, repeats + 2):
                    with torch.no_grad():
                        module.model.norm.weight.add_(0.01)
                    for way in WAYS if version % 2 else reversed(WAYS):
                        begin = time.perf_counter()
                        await pools[way].update_weights(Weights(module, version), version)
                        found[way].append(time.perf_counter() - begin)
    finally:
        cluster.leave()
    # The first one of each makes its group, or its folder.
    seconds = {way: statistics.median(times[1:]) for way, times in found.items()}
    first = {way: times[0] for way, times in found.items()}
    return {"bytes": size, "workers": workers, "seconds": seconds, "first_seconds": first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100, help="size of the state (default 100)")
    parser.add_argument("--workers", type=int, default=2, help="how many workers take it (default 2)")
    parser.add_argument("--repeats", type=int, default=7, help="updates by each way (default 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = asyncio.run(measure(args.mb, args.workers, args.repeats))
    size = found["bytes"] / 1e6
    print(f"ray {ray.__version__}, torch {torch.__version__}: {size:.0f} MB to {args.workers} workers\n")
    print("way            seconds    MB/s   the first")
    for way in WAYS:
        seconds = found["seconds"][way]
        print(f"{way:12s} {seconds:9.3f} {size / seconds:7.0f} {found['first_seconds'][way]:11.3f}")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
