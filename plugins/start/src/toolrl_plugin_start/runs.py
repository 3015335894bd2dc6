"""`toolrl runs`: lists runs, or shows two and more side by side."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolrl.cli.output import print_json, table
from toolrl.errors import DataError
from toolrl.protocols import Command
from toolrl.runs.folder import RunFolder
from toolrl.runs.formatting import format_duration, format_metric, measured
from toolrl.runs.names import RUNS, date_of, find_runs

HEADER = ("NAME", "KIND", "STATE", "STEPS", "ACCURACY", "REWARD", "TIME", "STARTED", "FOLDER")
SHOWN = ("accuracy", "reward/mean", "calls/mean", "loss", "errors/rate")
_METRICS = {
    "accuracy": "accuracy",
    "accuracy_stderr": "accuracy/stderr",
    "accuracy_low": "accuracy/interval/low",
    "accuracy_high": "accuracy/interval/high",
    "reward": "reward/mean",
}
"""Keys of a run's description, and the metrics that they hold."""
_PLACE = ("run",)
"""Sections that differ in any two runs."""


class RunsCommand(Command):
    """The command."""

    example = """toolrl runs
  toolrl runs runs/grpo runs/grpo-2"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument(
            "paths",
            nargs="*",
            type=Path,
            metavar="FOLDER",
            help="a folder with runs to list (default runs), or two or more runs to compare",
        )
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """List or compare."""
        paths = args.paths or [RUNS]
        if len(paths) > 1:
            compared = compare([RunFolder.open(path) for path in paths])
            print_json(compared) if args.json else print(_side_by_side(compared))
            return 0
        if not paths[0].is_dir():
            raise DataError("no such folder", where=str(paths[0]), hint="Name the folder that holds the runs.")
        found = sorted(map(describe, find_runs(paths[0])), key=lambda it: it["started"])
        if args.json:
            print_json(found)
        elif found:
            print(table(map(_row, found), header=HEADER))
        else:
            print(f"no runs in {paths[0]}")
        return 0


def describe(path: Path) -> dict[str, Any]:
    """A run in short; `error` where its files can't be read. `accuracy` and `reward` are those of the last evaluation,
    or of the last step where there is none; `metrics_of` says which. A run that failed before its start has the date
    of its config."""
    facts: dict[str, Any] = dict.fromkeys(
        ("kind", "steps", "total_steps", "seconds", "accuracy", "reward", "metrics_of")
    )
    facts = {"name": path.name, "folder": str(path), "state": "not started", "started": date_of(path), **facts}
    try:
        run = RunFolder.open(path)
        summary = run.summary()
        metrics = {line.kind: line.metrics for line in run.metrics_lines()}
    except DataError as error:
        return {**facts, "state": "unreadable", "error": error.message}
    facts["state"] = summary.get("status", facts["state"])
    facts |= {name: summary.get(name) for name in ("kind", "steps", "total_steps", "seconds")}
    kind = next((it for it in ("eval", "train", "rollout") if "accuracy" in metrics.get(it, {})), None)
    kind = kind or next((it for it in ("eval", "train", "rollout") if "reward/mean" in metrics.get(it, {})), None)
    last = metrics.get(kind or "", {})
    return facts | {"metrics_of": kind} | {key: last.get(name) for key, name in _METRICS.items()}


def _row(facts: Mapping[str, Any]) -> list[str]:
    known = {name: facts[key] for key, name in _METRICS.items() if facts.get(key) is not None}
    accuracy = format_metric(known, "accuracy") if "accuracy" in known else "-"
    if "accuracy" in known and facts["metrics_of"] != "eval":
        accuracy += f" ({facts['metrics_of']})"
    total = facts["total_steps"]
    return [
        facts["name"],
        facts["kind"] or "-",
        facts["state"],
        f"{facts['steps'] or 0}/{total}" if total else "-",
        accuracy,
        format_metric(known, "reward/mean") if "reward/mean" in known else "-",
        format_duration(facts["seconds"]) if facts["seconds"] is not None else "-",
        facts["started"][:16].replace("T", " "),
        facts["folder"],
    ]


def compare(runs: Sequence[RunFolder]) -> dict[str, Any]:
    """What differs in the configs, by path, and the last metrics of each kind; a value for each run, None where it has
    none."""
    configs = [dict(_flat({key: it for key, it in run.config.items() if key not in _PLACE})) for run in runs]
    paths = list(dict.fromkeys(path for config in configs for path in config))
    differing = {path: [config.get(path) for config in configs] for path in paths}
    lasts = [{line.kind: line.metrics for line in run.metrics_lines()} for run in runs]
    metrics = {}
    for kind in dict.fromkeys(kind for last in lasts for kind in last):
        for name in SHOWN:
            values = [last.get(kind, {}) for last in lasts]
            if any(name in it for it in values):
                key = f"{kind} {name}"
                metrics[key] = [{k: it[k] for k in it if measured(k) == name} or None for it in values]
    return {
        "runs": [describe(run.directory) for run in runs],
        "config": {path: values for path, values in differing.items() if any(it != values[0] for it in values)},
        "metrics": metrics,
    }


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _flat(inner, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _side_by_side(compared: Mapping[str, Any]) -> str:
    described = [_row(facts) for facts in compared["runs"]]
    rows = [
        [label.lower(), *(row[HEADER.index(label)] for row in described)]
        for label in ("KIND", "STATE", "STEPS", "TIME")
    ]
    for key, values in compared["metrics"].items():
        rows.append([key, *(format_metric(it, key.partition(" ")[2]) if it else "-" for it in values)])
    rows += [["", *[""] * len(described)], ["config", *[""] * len(described)]]
    for path, values in compared["config"].items():
        rows.append([f"  {path}", *("-" if it is None else _short(it) for it in values)])
    if not compared["config"]:
        rows[-1][0] = "the configs are equal"
    return table(rows, header=("", *(facts["name"] for facts in compared["runs"])))


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"
