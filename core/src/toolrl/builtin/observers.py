"""Observers that write a run's metrics elsewhere: as JSON lines, and for TensorBoard."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from toolrl.builtin.options import JsonlOptions, TensorboardOptions
from toolrl.errors import PluginError
from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl.runs.files import json_line
from toolrl.runs.metrics import MetricsLine


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
        if not self._options.kinds or report.kind in self._options.kinds:
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
        self._file.write(json_line(record))
        self._file.flush()


class TensorboardObserver:
    """The observer `tensorboard`: scalars under `<kind>/<metric>`.

    Writes with TensorBoard's own event writer; neither torch nor tensorflow is needed.
    """

    def __init__(self, options: TensorboardOptions, context: BuildContext | None = None) -> None:
        check_tensorboard()
        self._options = options
        self._writer: Any = None

    def toolrl_run_start(self, run: RunInfo) -> None:
        """Open an event file; a resumed run's later steps are marked as void."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        directory = Path(self._options.directory or run.directory / "tensorboard").expanduser()
        self._writer = EventFileWriter(str(directory), flush_secs=self._options.flush_seconds)
        if run.start_step:
            self._add(run.start_step + 1, session_log=SessionLog(status=SessionLog.START))

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Add the scalars; numbers that aren't finite are kept as they are."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{report.kind}/{name}", simple_value=float(value))
            for name, value in report.metrics.items()
        ]
        self._add(report.step, summary=Summary(value=values))

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Write what is left and close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, **content))


def check_tensorboard() -> str:
    """TensorBoard's version; raises PluginError where it isn't installed."""
    try:
        import tensorboard
    except ImportError as error:
        raise PluginError(
            f"the observer `tensorboard` needs the package tensorboard: {error}",
            hint='Install it: pip install "toolrl[tensorboard]"',
        ) from error
    return f"tensorboard {tensorboard.__version__}"
