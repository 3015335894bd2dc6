"""The observer `mlflow`: a run in MLflow."""

from __future__ import annotations

import csv
import hashlib
import io
import logging
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import yaml

from toolrl.protocols import BuildContext, RunInfo, StepReport
from toolrl_common.tracking import COLUMNS, Tracker, flat
from toolrl_plugin_mlflow.options import MlflowOptions

RETRIES = "2"
"""Of a request, unless MLFLOW_HTTP_REQUEST_MAX_RETRIES says otherwise. MLflow's own 7 take four minutes."""
MAX_PARAMS, MAX_METRICS, MAX_VALUE, MAX_NAME = 100, 1000, 6000, 250
"""Params and metrics in a request, characters of a value and of a name: MLflow's limits."""
STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}

_log = logging.getLogger(__name__)
_REFUSED = re.compile(r"[^\w\-. :/]")
_AT_K = re.compile(r"(\w+/(?:avg|pass))@(\d+(?:/stderr|/interval/\w+)?)")
"""toolrl's own metrics with an @."""


class MlflowObserver(Tracker):
    """Metrics as `<kind>/<metric>`, the config as params and as config.yaml, samples as `samples/<kind>-<step>.csv`.

    A thread makes the requests in order, so that a slow server holds up no rollout. A failed request is dropped.
    MLflow reads and writes a table of its own whole for each new row, so each report has a file instead.
    """

    tracker = "mlflow"
    options: MlflowOptions

    def __init__(self, options: MlflowOptions, context: BuildContext) -> None:
        super().__init__(options, context)
        self._work: queue.SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._send_all, name="mlflow", daemon=True)
        self._client: Any = None
        self._run_id: str | None = None

    def open(self, run: RunInfo, config: dict[str, Any], kept: str | None) -> None:
        """Start or resume the run."""
        self._thread.start()
        self._work.put((self._open, (run, config, kept)))

    def send(self, report: StepReport, metrics: dict[str, float], rows: list[list[Any]]) -> None:
        """Send the metrics, then the samples."""
        self._work.put((self._log_metrics, (metrics, report.step, int(time.time() * 1000))))
        if rows:
            self._work.put((self._log_text, (_csv(rows), f"samples/{report.kind}-{report.step:06d}.csv")))

    def close(self, status: str, error: BaseException | None) -> None:
        """End the run, and wait until all is sent."""
        self._work.put((self._close, (status, error)))
        self._work.put(None)
        self._thread.join(self.options.finish_seconds)
        if self._thread.is_alive():
            _log.warning("mlflow: not all was sent within %g seconds", self.options.finish_seconds)

    def _send_all(self) -> None:
        """The thread's work. Without a run, nothing else can be sent."""
        while (item := self._work.get()) is not None:
            work, args = item
            if work == self._open or self._run_id is not None:
                self.attempt(work, *args)

    def _open(self, run: RunInfo, config: dict[str, Any], kept: str | None) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", RETRIES)
        from mlflow import MlflowClient

        self._client = MlflowClient(tracking_uri=self.options.uri)
        if kept is None:
            found = self._client.get_experiment_by_name(self.options.project)
            place = self._client.create_experiment(self.options.project) if found is None else found.experiment_id
            name = self.options.name or run.name
            self._run_id = str(self._client.create_run(place, tags=self.options.tags, run_name=name).info.run_id)
            self.keep(self._run_id)
            self.attempt(self._log_params, flat(config))
        else:  # Params can't be changed; config.yaml can.
            self._client.update_run(kept, status="RUNNING")
            self._run_id = kept
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        self.attempt(self._log_text, text, "config.yaml")

    def _log_params(self, config: dict[str, Any]) -> None:
        from mlflow.entities import Param

        params = [Param(_clean(name), str(value)[:MAX_VALUE]) for name, value in config.items()]
        for start in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run_id, params=params[start : start + MAX_PARAMS])

    def _log_metrics(self, metrics: dict[str, float], step: int, milliseconds: int) -> None:
        from mlflow.entities import Metric

        batch = [Metric(_clean(name), value, milliseconds, step) for name, value in metrics.items()]
        for start in range(0, len(batch), MAX_METRICS):
            self._client.log_batch(self._run_id, metrics=batch[start : start + MAX_METRICS])

    def _log_text(self, text: str, path: str) -> None:
        self._client.log_text(self._run_id, text, path)

    def _close(self, status: str, error: BaseException | None) -> None:
        if error is not None:
            self._client.set_tag(self._run_id, "error", f"{type(error).__name__}: {error}"[:MAX_VALUE])
        self._client.set_terminated(self._run_id, STATUS[status])


def _clean(name: str) -> str:
    """A name that MLflow takes, for each name another one: `eval/pass@8` is `eval/pass_at_8`, and other names that
    have to be changed end in a checksum. MLflow refuses most signs, paths such as `a//b`, and long names."""
    if (own := _AT_K.fullmatch(name)) is not None:
        return f"{own[1]}_at_{own[2]}"
    clean = _REFUSED.sub("_", name.replace("@", "_at_"))
    clean = "/".join("_" if part in ("", ".", "..") else part for part in clean.split("/"))
    if clean == name and len(name) <= MAX_NAME and not _AT_K.fullmatch(name.replace("_at_", "@")):
        return name
    checksum = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{clean[: MAX_NAME - 9]}-{checksum}"


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows([COLUMNS, *rows])
    return file.getvalue()
