"""Observers that write a run's metrics: the lines of `console`, and JSON lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from toolrl.builtin.options import JsonlOptions, PlainConsoleOptions
from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl.runs.files import json_line, naming
from toolrl.runs.formatting import format_metric
from toolrl.runs.metrics import MetricsLine, status_of


class PlainConsole:
    """The observer `console` where toolrl-plugin-console isn't installed."""

    def __init__(self, options: PlainConsoleOptions, context: BuildContext | None = None) -> None:
        self._every = options.every

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Print a line of metrics."""
        if report.kind == "eval" or report.step % self._every == 0:
            names = (
                "accuracy",
                "reward/mean",
                "calls/mean",
                "calls/success",
                "truncated",
                "usage/cost",
                "errors/count",
                "loss",
                "time/step",
            )
            shown = [f"{name} {format_metric(report.metrics, name)}" for name in names if name in report.metrics]
            step = f" {report.step}/{run.total_steps}" if run.total_steps else ""
            print(f"{report.kind}{step}", *shown, sep="  ", flush=True)

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Print how the run ended."""
        print(f"{status_of(error)}; {run.directory}", flush=True)


class JsonlObserver:
    """The observer `jsonl`: each step's report as one JSON line, for another program to read.

    A line is that of metrics.jsonl with `run`, the run's name, and without `episodes`. In the last line, `end` holds
    "finished" or the error.
    """

    def __init__(
        self, options: JsonlOptions, context: BuildContext | None = None, *, stdout: IO[str] | None = None
    ) -> None:
        self._options = options
        self._stdout = stdout
        self._file: IO[bytes] | None = None

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Write the line."""
        line = MetricsLine(report.step, report.kind, time.time(), 0, dict(report.metrics)).to_record()
        del line["episodes"]
        self._write({"run": run.name, **line})

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Write the last line and close the file."""
        end = "finished" if error is None else f"{type(error).__name__}: {error}"
        self._write({"run": run.name, "end": end})
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, record: Mapping[str, Any]) -> None:
        if self._options.path == "-":
            stream = self._stdout or sys.stdout
            stream.write(json_line(record).decode("utf-8"))
            stream.flush()
            return
        if self._file is None:
            path = Path(self._options.path).expanduser()
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("ab")
        with naming(Path(self._options.path)):
            self._file.write(json_line(record))
            self._file.flush()
