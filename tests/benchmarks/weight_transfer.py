"""How fast new weights come to rollout workers.

    python tests/benchmarks/weight_transfer.py                    # 100 MB, two workers on this machine
    python tests/benchmarks/weight_transfer.py --mb 400 --json OUT.json

An update is what a run waits for: the trainer's weights are copied and sent, and all workers have written them into
their model and compared digests. A llama of random weights in float32; medians. `bytes` is the size of the state, once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

try:
    import ray
except ModuleNotFoundError:
    raise SystemExit("ray isn't installed: pip install toolrl-plugin-ray") from None
import torch
from ray_overhead import Plain
from transformers import LlamaConfig, LlamaForCausalLM

from toolrl.config.cluster import ClusterConfig
from toolrl.config.load import LoadedConfig
from toolrl.config.model import Config
from toolrl.rollout.environment import Environment
from toolrl.rollout.runner import Runner
from toolrl.rollout.source import Oversight
from toolrl.tools.toolbox import ToolBox
from toolrl_plugin_ray.broadcast import WeightBroadcast, WeightReceiver
from toolrl_plugin_ray.connection import connected, own_address
from toolrl_plugin_ray.messages import WeightUpdate, WorkerSpec
from toolrl_plugin_ray.rollout import spawn
from toolrl_plugin_ray.rollout_worker import RolloutWorker
from toolrl_plugin_ray.weights import verify
from toolrl_plugin_ray.worker_pool import WorkerPool
from toolrl_testing.fakes import FakeChatFormat, ScriptedEngine

VOCABULARY = 4000


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
    """A WeightSource as far as a broadcast needs it."""

    def __init__(self, module: Any, version: int) -> None:
        self._module, self.version = module, version

    def module(self) -> Any:
        return self._module


class Replica:
    """What takes weights on a worker here: no engine."""

    def __init__(self, module: Any) -> None:
        environment = Environment("default", Plain(), FakeChatFormat(), ToolBox([]))
        self.runner = Runner(ScriptedEngine(lambda prompt: "x"), {"default": environment}, concurrency=1)
        self._module, self._receiver = module, WeightReceiver()

    async def load(self, update: WeightUpdate) -> None:
        await self._receiver.receive(update, self._module)
        verify(update, self._module)

    def status(self) -> dict[str, Any]:
        return {}


@asynccontextmanager
async def replica(spec: WorkerSpec, update: WeightUpdate) -> AsyncIterator[Replica]:
    """`source` carries the model's size."""
    torch.set_num_threads(1)
    made = Replica(model(int(spec.source), seed=1))
    await made.load(update)
    yield made


class Worker(RolloutWorker):
    """A worker without an engine."""

    build = staticmethod(replica)


async def measure(megabytes: int, workers: int, repeats: int) -> dict[str, Any]:
    module = model(megabytes, seed=0)
    cluster = ClusterConfig(rollout_workers=workers, worker_cpus=0)
    config = Config.model_validate({"model": {"path": "-"}, "environments": {"default": {}}})
    spec = WorkerSpec(0, LoadedConfig(config, {}, "-"), str(megabytes), "float32", "cpu", str(Path.cwd()), "/nowhere")
    times = []
    async with connected(cluster, lambda: None):
        pool = WorkerPool(
            lambda number: spawn(cluster, spec.log_path, Worker),
            lambda number: replace(spec, number=number),
            WeightBroadcast(own_address(), timeout=600.0),
            Oversight(0.0),
            workers=workers,
            concurrency=1,
        )
        try:
            await pool.start(Weights(module, 0), 0)
            for version in range(1, repeats + 2):
                with torch.no_grad():
                    module.model.norm.weight.add_(0.01)
                begin = time.perf_counter()
                await pool.update_weights(Weights(module, version), version)
                times.append(time.perf_counter() - begin)
        finally:
            await pool.stop()
    size = sum(parameter.nbytes for parameter in module.parameters())
    # The first one makes the group.
    return {"bytes": size, "workers": workers, "seconds": statistics.median(times[1:]), "first_seconds": times[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=100, help="size of the state (default 100)")
    parser.add_argument("--workers", type=int, default=2, help="how many workers take it (default 2)")
    parser.add_argument("--repeats", type=int, default=7, help="updates (default 7)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = asyncio.run(measure(args.mb, args.workers, args.repeats))
    size, seconds = found["bytes"] / 1e6, found["seconds"]
    print(f"ray {ray.__version__}, torch {torch.__version__}: {size:.0f} MB to {args.workers} workers")
    print(f"{seconds:.3f} s, {size / seconds:.0f} MB/s; the first {found['first_seconds']:.3f} s")
    if args.json:
        args.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
