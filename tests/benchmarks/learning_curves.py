"""Draw the curves of docs/explanation/learning.md: accuracy over steps, and reward over hours.

    python tests/benchmarks/learning_curves.py OUT.png NAME=RUN …               # runs' folders
    python tests/benchmarks/learning_curves.py OUT.png NAME=RUN NAME=steps.jsonl --hours

A thin line is the training accuracy of a step, smoothed over five; dots are evaluations with standard errors. With
`--hours` the mean reward of a step stands over the time that the steps took so far, and a file of learning_trl.py
stands for a run of TRL.
"""

from __future__ import annotations

import argparse
import json
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from toolrl.runs.folder import RunFolder

COLORS = ("black", "tab:blue", "tab:green", "tab:orange", "tab:red")
SMOOTHED = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--hours", action="store_true")
    args = parser.parse_args()
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), dpi=100)
    for color, given in zip(COLORS, args.runs, strict=False):
        name, _, path = given.partition("=")
        draw = over_hours if args.hours else over_steps
        draw(axes, Path(path), label=name, color=color)
    axes.set_ylim(0, None)
    axes.set_xlim(0, None)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(args.picture)


def over_steps(axes: Any, path: Path, **style: Any) -> None:
    run = RunFolder.open(path)
    train = run.metrics_lines("train")
    values = smoothed([100 * line.metrics["accuracy"] for line in train])
    axes.plot([line.step for line in train], values, linewidth=0.8, color=style["color"])
    evaluated = run.metrics_lines("eval")
    means, errors = ([100 * line.metrics[name] for line in evaluated] for name in ("accuracy", "accuracy/stderr"))
    axes.errorbar(
        [line.step for line in evaluated], means, errors, marker="o", markersize=3, linewidth=0, elinewidth=1, **style
    )
    axes.set(xlabel="step", ylabel="accuracy in %")


def over_hours(axes: Any, path: Path, **style: Any) -> None:
    if path.is_dir():
        steps = [line.metrics for line in RunFolder.open(path).metrics_lines("train")]
        found = [(it["time/step"], it["reward/mean"]) for it in steps]
    else:
        found = [(it["seconds"], it["reward"]) for it in map(json.loads, path.read_text().splitlines())]
    hours = [seconds / 3600 for seconds in accumulate(seconds for seconds, _ in found)]
    axes.plot(hours, smoothed([reward for _, reward in found]), linewidth=1.2, **style)
    axes.set(xlabel="hours", ylabel="mean reward of a step")


def smoothed(values: list[float]) -> list[float]:
    return [fmean(values[max(0, place - SMOOTHED + 1) : place + 1]) for place in range(len(values))]


if __name__ == "__main__":
    main()
