"""The observers `report`, which keeps the index of a run's episodes and writes its page, and `tensorboard`."""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from toolrl.config.frame import OldNames
from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl.runs.episodes import EpisodeStore
from toolrl.runs.folder import RunFolder
from toolrl.runs.records import StoredEpisode
from toolrl.types import Episode
from toolrl_plugin_report.index import write_index
from toolrl_plugin_report.page import write_report
from toolrl_plugin_report.sample import Totals
from toolrl_plugin_report.view import row, said


class ReportObserver:
    """Writes report.html into the run's folder."""

    def __init__(self, options: None, context: BuildContext) -> None:
        """The page has no options."""
        self._rows: list[list[Any]] = []
        self._texts: list[str] = []
        self._totals = Totals()

    def toolrl_episode_end(self, episode: Episode) -> None:
        """Keep the episode's row and texts until its step ends."""
        self._totals.add(episode)
        self._rows.append(row(StoredEpisode(None, None, episode)))
        self._texts.append(said(episode))

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Write the index of the step's episodes, where the run saves them."""
        rows, texts, totals = self._rows, self._texts, self._totals
        self._rows, self._texts, self._totals = [], [], Totals()
        for one in rows:
            one[2:4] = [report.step, report.kind]
        for file in EpisodeStore(run.directory / "episodes").files() if rows else ():
            if (file.step, file.kind) == (report.step, report.kind):
                write_index(file, totals, rows, texts, run.config)

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Write the page of what the folder holds by now."""
        write_report(RunFolder.open(run.directory))


class TensorboardOptions(BaseModel):
    """Options of `tensorboard`."""

    model_config = ConfigDict(extra="forbid")
    old_names: ClassVar[OldNames] = {"flush_seconds": None}

    directory: str | None = Field(
        None, description="Folder of event files; None for `tensorboard` in the run's folder."
    )

    def check_files(self) -> None:
        """Raises ConfigError where the package isn't installed."""
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError("needs the package tensorboard: pip install 'toolrl[tensorboard]'")


class TensorboardObserver:
    """The observer `tensorboard`: scalars under `<kind>/<metric>`.

    Writes with TensorBoard's own event writer; neither torch nor tensorflow is needed.
    """

    def __init__(self, options: TensorboardOptions, context: BuildContext | None = None) -> None:
        self._options = options
        self._writer: Any = None

    def toolrl_run_start(self, run: RunInfo) -> None:
        """Open an event file; a resumed run's later steps are marked as void."""
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        directory = Path(self._options.directory or run.directory / "tensorboard").expanduser()
        self._writer = EventFileWriter(str(directory))
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
