"""The observer `report`: keeps the index of a run's episodes, and writes its page when it ends."""

from __future__ import annotations

from typing import Any

from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl.runs.episodes import EpisodeStore
from toolrl.runs.folder import RunFolder
from toolrl.runs.records import StoredEpisode
from toolrl.types import Episode
from toolrl_plugin_report.index import write_index
from toolrl_plugin_report.page import write_report
from toolrl_plugin_report.sample import Totals
from toolrl_plugin_report.view import row


class ReportObserver:
    """Writes report.html into the run's folder."""

    def __init__(self, options: None, context: BuildContext) -> None:
        """The page has no options."""
        self._rows: list[list[Any]] = []
        self._totals = Totals()

    def toolrl_episode_end(self, episode: Episode) -> None:
        """Keep the episode's row until its step ends."""
        self._totals.add(episode)
        self._rows.append(row(StoredEpisode(None, None, episode)))

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """Write the index of the step's episodes, where the run saves them."""
        rows, totals = self._rows, self._totals
        self._rows, self._totals = [], Totals()
        for one in rows:
            one[2:4] = [report.step, report.kind]
        for file in EpisodeStore(run.directory / "episodes").files() if rows else ():
            if (file.step, file.kind) == (report.step, report.kind):
                write_index(file, totals, rows, run.config)

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Write the page of what the folder holds by now."""
        write_report(RunFolder.open(run.directory))
