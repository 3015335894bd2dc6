"""The screen of results that ends a run: first and last metrics, paths, commands that come next."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from toolrl.protocols import RunInfo, StepReport
from toolrl.runs.files import names_objects
from toolrl.runs.formatting import UNCERTAINTY, format_metric, format_number
from toolrl.runs.metrics import MetricsLine
from toolrl_plugin_console.texts import is_remarkable, shown_path, sparkline

_METRICS = (
    "accuracy",
    "reward/mean",
    "calls/mean",
    "calls/success",
    "turns/mean",
    "tokens/sampled",
    "truncated",
    "errors/count",
    "usage/cost",
    "loss",
    "time/step",
)


Report = StepReport | MetricsLine


@dataclass
class History:
    """What is kept of a run's reports."""

    first: dict[str, Report] = field(default_factory=dict)
    """By kind."""
    last: dict[str, Report] = field(default_factory=dict)
    curve: list[float] = field(default_factory=list)
    """The reward of each training step; in fine-tuning the loss."""

    names: set[str] = field(default_factory=set)
    """The metrics that any report had."""

    def add(self, report: Report) -> None:
        self.names.update(report.metrics)
        self.first.setdefault(report.kind, report)
        self.last[report.kind] = report
        value = report.metrics.get("reward/mean", report.metrics.get("loss"))
        if report.kind != "eval" and value is not None:
            self.curve.append(value)

    def curve_line(self, width: int) -> Text:
        """A sparkline with the curve's name and last value; empty where there are fewer than two steps."""
        name = "loss" if "sft" in self.last else "reward"
        if len(self.curve) < 2:
            return Text()
        bars = sparkline(self.curve, max(8, width - 20))
        return Text.assemble((f"{name} ", "dim"), (bars, "cyan"), f" {self.curve[-1]:.3g}", no_wrap=True)


def table(history: History, more: Sequence[str], width: int) -> Iterator[RenderableType]:
    """First and last values of the usual metrics, and of `more`, by kind of report; where there are 60 columns, with
    their standard errors."""

    def value(metrics: Mapping[str, float], name: str) -> str:
        if name not in metrics:
            return ""
        return format_metric(metrics, name) if width >= 60 else format_number(metrics[name])

    steps = any(history.first[kind].step != last.step for kind, last in history.last.items())
    grid = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", show_header=steps)
    for title in ("", "first", "last") if steps else ("", ""):
        grid.add_column(title)
    for kind, last in history.last.items():
        first = history.first[kind]
        found = [
            name
            for name in last.metrics
            if name.startswith(("avg@", "pass@", "usage/")) and not name.endswith(("@1", *UNCERTAINTY))
        ]
        for name in dict.fromkeys([*_METRICS, *found, *more]):
            if any(name in report.metrics and is_remarkable(name, report.metrics[name]) for report in (first, last)):
                # A single report of a kind is its first: a run that was interrupted has no last evaluation yet.
                reports = [first, last] if first is not last else [first]
                cells = [value(report.metrics, name) for report in reports]
                grid.add_row(f"{kind} {name}", *cells, *[""] * (1 + steps - len(cells)))
    if grid.row_count:
        yield grid


def paths(run: RunInfo, checkpoint: Path | None) -> Iterator[Text]:
    """The run's folder, report and checkpoint, as far as they are there."""
    report = run.directory / "report.html"
    for label, path in (("run", run.directory), ("report", report), ("checkpoint", checkpoint)):
        if path is not None and path.exists():
            yield Text.assemble((f"{label:<12}", "dim"), shown_path(path))


def next_commands(run: RunInfo, history: History, checkpoint: Path | None, *, complete: bool) -> Iterator[Text]:
    """The next commands: resume what isn't complete; evaluate and export what has a checkpoint. Calls from Python where
    the config names Python objects."""
    folder, commands = shlex.quote(shown_path(run.directory)), []
    has_tasks = (run.config.get("data") or {}).get("eval") is not None
    objects = names_objects(run.directory)
    if run.total_steps and not complete and objects:
        commands.append("toolrl.train(…, resume=True)  # with the same arguments; the command line lacks the objects")
    elif run.total_steps and not complete:
        command = "sft" if "sft" in history.last else "train"
        program = "torchrun … -m toolrl" if "TORCHELASTIC_RUN_ID" in os.environ else "toolrl"
        commands.append(f"{program} {command} {folder} --resume")
    if checkpoint is not None:
        again = f"toolrl.evaluate({shown_path(run.directory)!r}, data=…, environments=…)"
        commands += [again if objects else f"toolrl eval {folder}"] * has_tasks + [f"toolrl export {folder} FOLDER"]
    commands.append(f"toolrl report {folder} --serve")
    for index, text in enumerate(commands):
        yield Text.assemble((f"{'' if index else 'next':<12}", "dim"), text)
