"""Training with slow tools: rollout and update in turns, against both at once. Samples a second, and what is learned.

    python tests/benchmarks/async_throughput.py [--seeds 0 1 2] [--modes sync async] [--json OUT]

The task is the quickstart's: a Qwen3 of 0.64M parameters, after its cold start, finds out by DAPO that the calculator
pays; 16 tasks of 8 episodes a step. The calculator takes exp(N(−1, 0.8)) seconds a call, at most 5, drawn anew for each
call: half a second in the mean, and the slowest of a step some four. Modes:

    sync   rollout and update take turns
    async  `max_staleness: 4`, samples weighted by truncated importance sampling

`samples a second` counts the episodes that steps were made of, over the time from the start of the first step to the
end of the last, evaluations left out. Accuracy is that of 256 held-out tasks at temperature 1, with a calculator that
answers at once. Cold starts are kept in `--dir`, so that a second run needs none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from toolrl import Component, hookimpl
from toolrl.assembly import assemble
from toolrl.config.load import load_config
from toolrl.jobs import train
from toolrl.plugins.registry import Registry, load_registry
from toolrl.protocols import BuildContext, EpisodeContext
from toolrl.report.metrics import MetricsLine
from toolrl.tools import FunctionTool, tool
from toolrl_plugin_calculator.evaluate import Evaluator

QUICKSTART = Path(__file__).parents[2] / "docs" / "examples" / "quickstart"
TARGET = 1.5
"""Samples a second of `async` over those of `sync`, at least."""
MODES: dict[str, list[str]] = {
    "sync": [],
    "async": ["rollout.max_staleness=4", "algorithm.importance={level: token, mode: truncate, cap: 2.0}"],
}
_latencies = random.Random(0)
_lock = threading.Lock()


def build(options: None, context: BuildContext) -> FunctionTool:
    """The calculator, slow in training."""
    evaluate = Evaluator()

    @tool(name="calculator", description="Evaluates one expression.")
    def calculator(expression: str, episode: EpisodeContext) -> str:
        if episode.training:
            with _lock:
                seconds = _latencies.lognormvariate(-1.0, 0.8)
            time.sleep(min(seconds, 5.0))
        return evaluate(expression)

    return calculator


@hookimpl
def toolrl_tools() -> Any:
    yield Component("slow_calculator", f"{__name__}:build", summary="A calculator that takes its time.")


def prepare(folder: Path, seed: int) -> Path:
    """The model after the quickstart's cold start, made once."""
    done = folder / "warmup-2"
    if (done / "summary.json").exists() and json.loads((done / "summary.json").read_text())["status"] == "finished":
        return done
    commands = [[str(QUICKSTART / "make_model.py"), str(folder / "model"), "--seed", str(seed)]]
    for name, source in (("warmup-1", "model"), ("warmup-2", "warmup-1")):
        values = [f"model.path={folder / source}", f"run.dir={folder}", f"run.name={name}", f"seed={seed}"]
        sets = [part for value in [*values, "device=cpu", "observers=[]"] for part in ("--set", value)]
        commands.append(["-m", "toolrl", "sft", str(QUICKSTART / f"{name}.yaml"), "--overwrite", *sets])
    for command in commands:
        subprocess.run([sys.executable, *command], check=True, stdout=sys.stderr)
    return done


def registry() -> Registry:
    """All plugins, and the slow calculator."""
    mine = Registry.from_modules({"slow-calculator": sys.modules[__name__]})
    return Registry([*load_registry().plugins, *mine.plugins])


def settings(mode: str, seed: int, folder: Path) -> list[str]:
    """What a run changes in the quickstart's config."""
    return [
        f"model.path={folder / 'warmup-2'}", f"run.dir={folder}", f"run.name={mode}", f"seed={seed}", "device=cpu",
        "environments.default.tools=[slow_calculator]", "evaluation.every=0", "run.save_episodes=false",
        "rollout.concurrency=1024", *MODES[mode],
    ]  # fmt: skip


def measure(mode: str, seed: int, folder: Path, overrides: Sequence[str] = ()) -> dict[str, float]:
    """One training run."""
    prepare(folder, seed)
    _latencies.seed(seed)
    plugins = registry()
    loaded = load_config(QUICKSTART / "grpo.yaml", [*settings(mode, seed, folder), *overrides], registry=plugins)
    cpu = time.process_time()

    async def run() -> list[MetricsLine]:
        async with assemble(
            loaded, plugins, total_steps=loaded.config.trainer.steps, overwrite=True, observers=(),
            data={"data.train": True, "data.eval": False},
        ) as assembly:  # fmt: skip
            await train(assembly)
            return assembly.folder.metrics_lines()

    lines = asyncio.run(run())
    steps = [line.metrics for line in lines if line.kind == "train"]
    accuracies = [line.metrics["accuracy"] for line in lines if line.kind == "eval"]
    seconds = sum(step["time/step"] for step in steps)
    config = loaded.config
    return {
        "samples_per_second": len(steps) * config.trainer.prompts_per_step * config.algorithm.group_size / seconds,
        "seconds_per_step": seconds / len(steps),
        "waiting_per_step": sum(step["time/rollout"] for step in steps) / len(steps),
        "processor_seconds": time.process_time() - cpu,
        "accuracy_start": accuracies[0],
        "accuracy": accuracies[-1],
        "staleness": statistics.mean(step.get("staleness/mean", 0.0) for step in steps),
    }


def summary(runs: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Of each mode: medians over the seeds, and the range of the accuracies; `ratio` over `sync` where that was run."""
    found: dict[str, Any] = {}
    for mode, rows in runs.items():
        accuracies = [row["accuracy"] for row in rows]
        found[mode] = {
            **{key: statistics.median(row[key] for row in rows) for key in rows[0] if key != "accuracy"},
            "accuracy_mean": statistics.mean(accuracies),
            "accuracy_least": min(accuracies),
            "accuracy_most": max(accuracies),
            "runs": rows,
        }
        if "sync" in runs:
            pairs = zip(rows, runs["sync"], strict=True)
            ratios = [mine["samples_per_second"] / other["samples_per_second"] for mine, other in pairs]
            found[mode]["ratio"] = statistics.median(ratios)
    return found


def table(found: dict[str, Any]) -> str:
    """In Markdown."""
    lines = [
        "| mode | samples a second | over `sync` | seconds a step, of which waiting | staleness | accuracy |",
        "|---|---|---|---|---|---|",
    ]
    for mode, row in found.items():
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else ""
        lines.append(
            f"| `{mode}` | {row['samples_per_second']:.1f} | {ratio} "
            f"| {row['seconds_per_step']:.1f}, {row['waiting_per_step']:.1f} | {row['staleness']:.1f} "
            f"| {row['accuracy_mean']:.1%} ({row['accuracy_least']:.1%} to {row['accuracy_most']:.1%}) |"
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=["sync", "async"])
    parser.add_argument("--dir", type=Path, default=Path("runs/throughput"))
    parser.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="of the config, for all runs")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in options.modes}
    for place, seed in enumerate(options.seeds):
        folder = options.dir / str(seed)
        for mode in options.modes if place % 2 == 0 else reversed(options.modes):
            row = measure(mode, seed, folder, options.set)
            runs[mode].append(row)
            print(f"seed {seed} {mode}: {json.dumps(row)}", file=sys.stderr, flush=True)
    found = summary(runs)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int("ratio" in found.get("async", {}) and found["async"]["ratio"] < TARGET)


if __name__ == "__main__":
    sys.exit(main())
