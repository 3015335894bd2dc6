"""The observer `wandb`: a run in Weights & Biases."""

from __future__ import annotations

import uuid
from typing import Any

from toolrl.protocols import RunInfo, StepReport
from toolrl_common.tracking import COLUMNS, Tracker
from toolrl_plugin_wandb.options import WandbOptions

INIT_SECONDS = 30.0
"""How long the start of a run waits for the server."""


class WandbObserver(Tracker):
    """Metrics as `<kind>/<metric>` over `step`, a table `samples/<kind>`, the resolved config.

    Metrics have an axis of their own: W&B drops what is logged under a step that isn't above the last one, such as the
    steps that a resumed run repeats. Its files are in the run folder.
    """

    tracker = "wandb"
    options: WandbOptions
    _run: Any

    def open(self, run: RunInfo, config: dict[str, Any], kept: str | None) -> None:
        """Start or resume the run."""
        import wandb

        run_id = kept or uuid.uuid4().hex[:12]
        options = self.options
        settings = wandb.Settings(
            console="off",  # The console's view draws in place.
            quiet=True,
            init_timeout=INIT_SECONDS,
            finish_timeout=options.finish_seconds,
        )
        self._run = wandb.init(
            project=options.project,
            entity=options.entity,
            name=options.name or run.name,
            id=run_id,
            resume="allow",
            mode=options.mode,
            tags=options.tags or None,
            group=options.group,
            job_type="train" if run.total_steps else "eval",
            dir=run.directory,
            settings=settings,
        )
        self.keep(run_id)
        self._run.config.update(config, allow_val_change=True)
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def send(self, report: StepReport, metrics: dict[str, float], rows: list[list[Any]]) -> None:
        """Log one row of history. A table object can be logged once: each report has a new one."""
        import wandb

        tables = {f"samples/{report.kind}": wandb.Table(columns=list(COLUMNS), data=rows)} if rows else {}
        self._run.log({"step": report.step, **metrics, **tables})

    def close(self, status: str, error: BaseException | None) -> None:
        """Finish the run: W&B shows one that didn't finish as failed."""
        self._run.summary["status"] = status
        if error is not None:
            self._run.summary["error"] = f"{type(error).__name__}: {error}"
        self._run.finish(exit_code=0 if status == "finished" else 1)
