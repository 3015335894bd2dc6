"""Options of the observer `mlflow`."""

from __future__ import annotations

import os

from pydantic import Field

from toolrl_common.tracking import TrackerOptions


class MlflowOptions(TrackerOptions):
    """Options of `mlflow`; its own environment variables (`MLFLOW_TRACKING_TOKEN` …) hold, too."""

    project: str = Field("toolrl", min_length=1, description="The experiment; it is made where it isn't there.")
    tracking_uri: str | None = Field(
        None, description="A server or database; None for MLFLOW_TRACKING_URI, or `sqlite:///mlflow.db` here."
    )
    tags: dict[str, str] = Field(default_factory=dict, description="Tags of the run.")
    finish_seconds: float = Field(120, gt=0, description="How long a run's end waits for what wasn't sent yet.")

    @property
    def uri(self) -> str:
        """Where runs are kept."""
        return self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
