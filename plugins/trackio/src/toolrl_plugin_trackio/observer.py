"""The observer `trackio`: a run in Trackio."""

from __future__ import annotations

import contextvars
from typing import Any

from toolrl.protocols import RunInfo, StepReport
from toolrl_common.tracking import COLUMNS, Tracker, prints_to_stderr
from toolrl_plugin_trackio.options import TrackioOptions


class TrackioObserver(Tracker):
    """Metrics as `<kind>/<metric>`, a table `samples/<kind>`, the resolved config; an alert if the run doesn't finish.

    Trackio sends from a thread of its own, and keeps what a server doesn't take for its next run.
    """

    tracker = "trackio"
    options: TrackioOptions
    _context: contextvars.Context
    """Holds Trackio's current run, which its exit handler would finish again."""
    _run: Any

    def open(self, run: RunInfo, config: dict[str, Any], kept: str | None) -> None:
        """Start the run. Trackio resumes by name, which another run may have, too: the id is set here."""
        import trackio

        options = self.options
        self._context = contextvars.copy_context()
        with prints_to_stderr():
            self._run = self._context.run(
                trackio.init,
                project=options.project,
                name=options.name or run.name,
                group=options.group,
                space_id=options.space_id,
                server_url=options.server_url,
                config=config,
                embed=False,
            )
        if kept is not None:
            self._run.id = kept
        self.keep(self._run.id)

    def send(self, report: StepReport, metrics: dict[str, float], rows: list[list[Any]]) -> None:
        """Log the metrics and the table at the report's step."""
        import trackio

        tables = {f"samples/{report.kind}": trackio.Table(columns=list(COLUMNS), data=rows)} if rows else {}
        self._run.log({**metrics, **tables}, step=report.step)

    def close(self, status: str, error: BaseException | None) -> None:
        """Finish the run. Trackio knows no status of a run: an alert holds what ended it."""
        import trackio

        with prints_to_stderr():
            if status != "finished":
                level = trackio.AlertLevel.ERROR if status == "failed" else trackio.AlertLevel.WARN
                self._run.alert(f"{self._run.name} {status}", f"{type(error).__name__}: {error}", level)
            self._context.run(trackio.finish)
