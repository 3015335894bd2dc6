"""`toolrl status RUN`: shows what a run and each of its workers do now."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolrl.cli.output import print_json, table
from toolrl.tools.restart_counts import LIMITS, SERVERS

if TYPE_CHECKING:
    from toolrl.runs.folder import RunFolder

HELP = "show what a run and its workers do now"
EXAMPLE = """toolrl status
  watch -n 2 toolrl status runs/grpo"""

_STALE = 30.0
"""Seconds after which the status of a live run is called old: something blocks its process."""
_TIMES = ("time/rollout", "time/update", "time/weights", "time/step")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="a run folder; by default the newest run in the folder runs"
    )
    parser.add_argument("--json", action="store_true", help="print all that is known as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the status; the exit status of the command."""
    from toolrl.runs.folder import RunFolder, describe_run
    from toolrl.runs.names import newest_run
    from toolrl.runs.status import read_status

    folder = RunFolder.open(args.run or newest_run())
    live = folder.is_live()
    # A killed run leaves its last status.
    status = read_status(folder.directory) if live else None
    lines = folder.metrics_lines("train") or folder.metrics_lines()
    last = dict(lines[-1].metrics) if lines else {}
    if args.json:
        facts = {"run": folder.directory, "live": live, "summary": folder.summary(), "now": status, "last": last}
        print_json(facts)
        return 0
    print(f"{folder.name}: {describe_run(folder.directory)}")
    for block in _blocks(status, last, live=live, folder=folder):
        print(block)
    return 0


def _blocks(
    status: Mapping[str, Any] | None, last: Mapping[str, float], *, live: bool, folder: RunFolder
) -> Iterator[str]:
    if last:
        yield from _last_step(last)
    if status is None:
        yield "starting" if live else "not running"
        return
    age = time.time() - float(status.get("time", 0.0))
    doing, seconds = status.get("doing", "starting"), float(status.get("doing_seconds", 0.0))
    stale = f"; this status is {age:.0f} s old" if age > _STALE else ""
    yield f"now {doing}, for {seconds + age:.0f} s (process {status.get('pid')}{stale})"
    if status.get("rank_restarts"):
        yield f"restarts of all ranks: {status['rank_restarts']}"
    waiting = status.get("waiting_groups")
    if waiting is not None:
        yield f"groups waiting for a free worker: {waiting}"
    workers = status.get("workers", [])
    yield "\n" + _workers(workers)
    tools = _merged_tools(workers)
    if tools:
        yield "\n" + _tools(tools)
    yield from _restarts(status.get("restarted", {}))
    yield from _breakers(workers)
    logs = folder.directory / "workers"
    if logs.is_dir():
        yield f"\nlogs of the workers: {logs}"


def _last_step(last: Mapping[str, float]) -> Iterator[str]:
    times = [f"{name.partition('/')[2]} {last[name]:.1f} s" for name in _TIMES if name in last]
    if times:
        yield f"last step: {', '.join(times)}"
    if "staleness/mean" in last:
        waiting = f"; finished groups waiting: {last['groups/waiting']:.0f}" if "groups/waiting" in last else ""
        yield (
            f"staleness of its samples, in weight versions: mean {last['staleness/mean']:.2f}, "
            f"max {last['staleness/max']:.0f}{waiting}"
        )


def _workers(workers: Sequence[Mapping[str, Any]]) -> str:
    header = ("worker", "state", "process", "weights", "groups", "running", "waiting", "ended", "failed")
    keys = ("worker", "state", None, "weights", "groups", "running", "waiting", "ended", "failed")
    rows = [[_process(it) if key is None else _shown(it.get(key)) for key in keys] for it in workers]
    return table(rows, header=header)


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)


def _process(worker: Mapping[str, Any]) -> str:
    return f"{worker['pid']} on {worker['node']}" if worker.get("pid") is not None else "-"


def _merged_tools(workers: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Over all workers; of the latencies the worst worker's."""
    merged: dict[str, dict[str, float]] = {}
    for worker in workers:
        for name, facts in worker.get("tools", {}).items():
            found = merged.setdefault(name, {"calls": 0, "errors": 0, "p50": 0.0, "p95": 0.0, "max": 0.0})
            for key in ("calls", "errors"):
                found[key] += facts[key]
            for key in ("p50", "p95", "max"):
                found[key] = max(found[key], facts[key])
    return merged


def _tools(tools: Mapping[str, Mapping[str, float]]) -> str:
    rows = [
        [name, f"{it['calls']:.0f}", f"{it['errors']:.0f}", *(f"{1000 * it[key]:.1f}" for key in ("p50", "p95", "max"))]
        for name, it in tools.items()
    ]
    return table(rows, header=("tool", "calls", "errors", "p50 ms", "p95 ms", "max ms"))


def _restarts(counts: Mapping[str, int]) -> Iterator[str]:
    """Services of tools that died and were restarted."""
    names = {LIMITS: "the cluster's limits", SERVERS: "servers of tools"}
    parts = [f"{name} {counts[kind]}" for kind, name in names.items() if counts.get(kind)]
    if parts:
        yield f"\nrestarted since the run began: {', '.join(parts)}"


def _breakers(workers: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Circuit breakers that aren't closed."""
    for worker in workers:
        for endpoint, state in worker.get("breakers", {}).items():
            if state != "closed":
                yield f"circuit breaker of {endpoint!r} in worker {worker['worker']}: {state.replace('_', '-')}"
