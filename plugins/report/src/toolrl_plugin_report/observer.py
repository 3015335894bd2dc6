"""The observer `report`: writes a run's page when the run ends."""

from __future__ import annotations

from toolrl.protocols import BuildContext, RunInfo
from toolrl.runs.folder import RunFolder
from toolrl_plugin_report.page import write_report


class ReportObserver:
    """Writes report.html into the run's folder."""

    def __init__(self, options: None, context: BuildContext) -> None:
        """The page has no options."""

    def toolrl_run_end(self, run: RunInfo, error: BaseException | None) -> None:
        """Write the page of what the folder holds by now."""
        write_report(RunFolder.open(run.directory))
