"""Throughput against GPUs, staleness and the time that tools take: a simulation with toolrl's own scheduling.

    python tests/benchmarks/simulate_scale.py                   # eight GPUs, in a minute
    python tests/benchmarks/simulate_scale.py --gpus 8 64 1024  # the first table of docs/explanation/scale.md
    python tests/benchmarks/simulate_scale.py --validate        # against real runs of small size

`scale_simulation.py` says what is toolrl's and what is simulated, `scale_arithmetic.py` how long decoding, updates and
transfers are taken to last, `scale_inputs.py` where the driver's costs are from. Staleness 0 stands there twice: GPUs
that sample and train in turns (`colocated`), and GPUs that do one of both (`split`), as with all other staleness.

`--validate` runs the same schedules for real, in this process, and compares: `schedule_slow_tools.py` takes turns and
overlaps with tools that wait, once in real time, and the same code with other draws of latencies on a clock that jumps;
`ray_overhead.py` deals to one worker and to two, where Ray is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scale_arithmetic import GPUS, Setting, growing, percent, seconds, split_of
from scale_parameters import QWEN_7B, QWEN_32B, Load, Machine, Measured, read_measured, table
from scale_simulation import Outcome, round_seconds, simulate
from scale_worker import Costs, Scenario, Tool

from toolrl.testing.clock import run_in_virtual_time

MODELS = {model.name: model for model in (QWEN_7B, QWEN_32B)}
DRAWS = 8
"""Of latencies, where a schedule is compared."""
TAIL = 10.0
"""No call takes longer than so many times the mean."""


@dataclass(frozen=True)
class Case:
    """A line of the tables."""

    gpus: int
    tool: float
    staleness: int
    colocated: bool

    @property
    def schedule(self) -> str:
        return "colocated, in turns" if self.colocated else f"split, {self.staleness}"


@dataclass(frozen=True)
class Options:
    """Of a run of this script."""

    gpus: tuple[int, ...]
    staleness: tuple[int, ...]
    tools: tuple[float, ...]
    load: str
    model: str
    transfer: str
    concurrency: int
    spread: float
    steps: int
    seed: int

    def cases(self) -> Iterator[Case]:
        for gpus in self.gpus:
            for tool in self.tools:
                if 0 in self.staleness:
                    yield Case(gpus, tool, 0, True)
                for staleness in self.staleness:
                    yield Case(gpus, tool, staleness, False)


def setting_of(gpus: int, options: Options, measured: Measured) -> Setting:
    load = Load() if options.load == "fixed" else growing(gpus, Load())
    return Setting(MODELS[options.model], load, Machine(), measured)


def scenario_of(case: Case, options: Options, measured: Measured) -> Scenario:
    """What a case takes, by the arithmetic."""
    setting = setting_of(case.gpus, options, measured)
    load, model = setting.load, setting.model
    rollout = case.gpus if case.colocated else split_of(setting, case.gpus)
    ranks = case.gpus if case.colocated else case.gpus - rollout
    workers = max(1, rollout // model.tensor_parallel)
    before, standing = setting.weights(rollout).parts(options.transfer)
    costs = Costs(
        measured.report_s,
        measured.bring_s + measured.unpack_s + measured.record_s,
        measured.order_s,
        measured.deal_512_s * workers / 512,
    )
    update = setting.groups_seconds(ranks) + setting.update_seconds(ranks) + load.episodes * measured.credit_s
    if case.colocated:
        update += load.episodes * measured.record_s  # The first rank writes while all others wait for it.
    return Scenario(
        workers=workers,
        concurrency=min(options.concurrency, setting.places()),
        prompts=load.prompts,
        group=load.group,
        turns=load.turns,
        turn_tokens=load.turn_tokens,
        token=setting.token_seconds,
        tool=Tool(case.tool, cap=TAIL * case.tool),
        update=update,
        spread=options.spread,
        publish=0.0 if case.colocated else before,
        receive=0.0 if case.colocated else standing,
        staleness=case.staleness,
        colocated=case.colocated,
        costs=costs,
        message=0.0005,
        seed=options.seed,
    )


def steps_of(options: Options, staleness: int) -> tuple[int, int]:
    """Steps that are counted, and those before: groups come in bursts of as many steps as are in flight."""
    flight = staleness + 1
    return options.steps * flight, 2 * flight if staleness else 1


HEAD = (
    "GPUs", "tool, s", "placement, staleness", "episodes a second", "step, s", "trainer: waits", "updates",
    "hands over", "engines: decode", "stand still", "idle", "driver", "age",
)  # fmt: skip


def line(case: Case, found: Outcome) -> list[str]:
    return [
        f"{case.gpus:,}", f"{case.tool:g}", case.schedule, f"{found.episodes_a_second:.1f}", seconds(found.step),
        percent(found.waiting), percent(found.updating), percent(found.handing), percent(found.decoding),
        percent(found.standing), percent(found.idle), percent(found.driver), f"{found.staleness_mean:.1f}",
    ]  # fmt: skip


def grid(options: Options, measured: Measured) -> list[dict[str, Any]]:
    """All cases, one after the other; a line of each is printed as it is done."""
    print(table(HEAD, []), flush=True)
    rows = []
    for case in options.cases():
        began = time.perf_counter()
        scenario = scenario_of(case, options, measured)
        found = simulate(scenario, *steps_of(options, case.staleness))
        print(f"| {' | '.join(line(case, found))} |", flush=True)
        fixed = {"workers": scenario.workers, "update_s": scenario.update, "receive_s": scenario.receive}
        rows.append({**asdict(case), **fixed, **asdict(found), "took_s": time.perf_counter() - began})
    return rows


def pivot(rows: Sequence[dict[str, Any]]) -> str:
    """Episodes a second: a line for each size and tool, a column for each schedule."""
    schedules = sorted({(not row["colocated"], row["staleness"]) for row in rows})
    rates = {
        (row["gpus"], row["tool"], not row["colocated"], row["staleness"]): row["episodes_a_second"] for row in rows
    }
    head = ["GPUs", "tool, s", *(f"split, {staleness}" if split else "colocated" for split, staleness in schedules)]
    lines = []
    for gpus, tool in sorted({(row["gpus"], row["tool"]) for row in rows}):
        found = [rates.get((gpus, tool, *schedule)) for schedule in schedules]
        lines.append([f"{gpus:,}", f"{tool:g}", *("" if rate is None else f"{rate:.1f}" for rate in found)])
    return table(head, lines)


def read_rows(files: Sequence[Path]) -> list[dict[str, Any]]:
    """Of files that `--json` wrote."""
    return [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["rows"]]


# Against real runs.

SLOW = Tool(math.exp(-1.0 + 0.8**2 / 2), 0.8, 5.0)
"""The tool of `schedule_slow_tools.py`: exp(N(−1, 0.8)) seconds, at most 5."""


def slow_tools(staleness: int, steps: int, seeds: int) -> list[float]:
    """Seconds a step of the schedule that `schedule_slow_tools.py` runs, by seed."""
    scenario = Scenario(1, 4096, 16, 8, 2, 1.0, lambda count: 0.1, SLOW, 0.5, staleness=staleness)
    return [simulate(replace(scenario, seed=seed), steps, ends=True).step for seed in range(seeds)]


def validate_slow_tools(steps: int) -> list[dict[str, Any]]:
    """Once in real time, and several times on a clock that jumps, as the latencies that are drawn make much of it."""
    import schedule_slow_tools as real

    rows = []
    for mode, staleness in (("in turns", 0), ("max_staleness: 1", 1), ("max_staleness: 2", 2), ("max_staleness: 4", 4)):
        make = real.MODES[mode]
        took = asyncio.run(real.measure(make, steps))
        drawn = [run_in_virtual_time(real.measure(make, steps, seed=seed)) for seed in range(DRAWS)]
        simulated = slow_tools(staleness, steps, DRAWS)
        rows.append(
            {"case": mode, "unit": "s a step", "took": took, "real": drawn, "simulated": simulated}
        )  # fmt: skip
    return rows


def validate_workers(measured: Measured) -> list[dict[str, Any]]:
    """As `ray_overhead.py`: 32 groups of 8, 32 tokens of 20 ms, 16 in flight a worker."""
    import ray_overhead as real

    from toolrl.cluster.ray_workers import RayCluster
    from toolrl.config.model import Config

    config = Config.model_validate(
        {"model": {"path": "-"}, "environments": {"default": {}}, "cluster": {"rollout_workers": 3, "worker_cpus": 0}}
    ).cluster
    cluster = RayCluster(config, 100 * 2**20)

    async def run() -> dict[int, float]:
        cluster.join()
        try:
            return await real.scaling(cluster, 32, 32, 2)
        finally:
            cluster.leave()

    rates, rows = asyncio.run(run()), []
    for workers, rate in rates.items():
        costs = Costs(measured.report_s, measured.bring_s + measured.unpack_s, measured.order_s)
        scenario = Scenario(
            workers, real.IN_FLIGHT, 32, real.GROUP, 1, 32.0, lambda count: real.TOKEN_SECONDS, Tool(0.0), 0.0,
            costs=costs, message=0.0005,
        )  # fmt: skip
        simulated = 32 * real.GROUP / round_seconds(scenario, 32)
        row = {"case": f"workers on Ray: {workers}", "unit": "episodes/s", "took": rate}
        rows.append({**row, "real": [], "simulated": [simulated]})
    one, two = rows
    times = {"took": two["took"] / one["took"], "real": [], "simulated": [two["simulated"][0] / one["simulated"][0]]}
    return [*rows, {"case": "two over one", "unit": "times", **times}]


def validate(measured: Measured) -> list[dict[str, Any]]:
    rows = validate_slow_tools(20)
    if importlib.util.find_spec("ray") is not None:
        rows += validate_workers(measured)
    for row in rows:
        row["ratio"] = statistics.mean(row["simulated"]) / statistics.mean(row["real"] or [row["took"]])
    shown = [
        [row["case"], row["unit"], *map(spread, ([row["took"]], row["real"], row["simulated"], [row["ratio"]]))]
        for row in rows
    ]
    head = ["case", "", "real", "real, the clock jumping", "simulated", "simulated over real"]
    print(table(head, shown))
    return rows


def spread(values: Sequence[float]) -> str:
    """Mean, least and most."""
    if len(values) < 2:
        return "".join(f"{value:.2f}" for value in values)
    return f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, nargs="+", default=list(GPUS[:1]), help="sizes (default 8); 8 at least")
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1, 2, 4, 8], help="values of max_staleness")
    parser.add_argument("--tool", type=float, nargs="+", default=[0.0, 0.5, 5.0],
                        help="mean seconds of a call; log-normal, sigma 0.8, at most ten times the mean")  # fmt: skip
    parser.add_argument("--load", choices=("fixed", "growing"), default="fixed",
                        help="64 prompts a step, or two for each GPU (default fixed)")  # fmt: skip
    parser.add_argument("--model", choices=sorted(MODELS), default="7B", help="default 7B")
    parser.add_argument("--transfer", choices=("object_store", "file", "gloo", "nccl"), default="object_store",
                        help="how weights come to the workers: as cluster.weight_transfer, or by a broadcast "
                        "of torch.distributed over Ethernet or InfiniBand (default object_store)")  # fmt: skip
    parser.add_argument("--concurrency", type=int, default=128, help="episodes in flight of an engine (default 128)")
    parser.add_argument("--spread", type=float, default=0.5,
                        help="sigma of the log-normal number of tokens of a turn (default 0.5)")  # fmt: skip
    parser.add_argument("--steps", type=int, default=4,
                        help="that count for each step in flight, after some to warm up (default 4)")  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of lengths and latencies (default 0)")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="figures of `scale_inputs.py --json`")
    parser.add_argument("--validate", action="store_true", help="compare with real runs instead")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE",
                        help="simulate nothing: show the episodes a second of files that --json wrote")  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    given = parser.parse_args(argv)
    measured = read_measured(given.measured)
    if (
        min(given.gpus) < 8
        or min(given.staleness) < 0
        or min(given.tool) < 0
        or given.steps < 1
        or given.concurrency < 1
    ):
        parser.error("--gpus takes 8 and more, --staleness and --tool 0 and more, --steps and --concurrency 1 and more")
    options = Options(
        tuple(given.gpus), tuple(given.staleness), tuple(given.tool), given.load, given.model, given.transfer,
        given.concurrency, given.spread, given.steps, given.seed,
    )  # fmt: skip
    if given.read:
        print(pivot(read_rows(given.read)))
        return 0
    rows = validate(measured) if given.validate else grid(options, measured)
    if not given.validate:
        print(f"\nEpisodes a second\n\n{pivot(rows)}")
    if given.json:
        told = {"options": vars(given) | {"measured": None, "json": None}, "inputs": asdict(measured), "rows": rows}
        given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
