"""Options of the observer `mlflow`."""

from __future__ import annotations

import os

from pydantic import Field

from toolrl.errors import ConfigError
from toolrl_common.tracking import TrackerOptions

SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks", "file", "")


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

    def check_files(self) -> None:
        """Raises ConfigError for an address that MLflow doesn't take."""
        scheme = self.uri.partition(":")[0].partition("+")[0] if ":" in self.uri else ""
        if scheme not in SCHEMES and self.uri != "databricks":
            raise ConfigError(
                f"mlflow knows no address {self.uri!r}",
                hint="Take http://HOST:PORT of a server, or sqlite:///FILE.",
            )
        if scheme in ("file", "") and self.uri != "databricks" and not os.environ.get("MLFLOW_ALLOW_FILE_STORE"):
            raise ConfigError(
                f"mlflow refuses folders such as {self.uri!r}",
                hint="Take sqlite:///FILE, or set MLFLOW_ALLOW_FILE_STORE=true.",
            )
