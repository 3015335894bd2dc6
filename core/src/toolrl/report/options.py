"""Options of the observers that come with toolrl."""

from __future__ import annotations

import importlib.util

from pydantic import BaseModel, ConfigDict, Field

from toolrl.errors import ConfigError


class _Options(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ConsoleOptions(_Options):
    """Options of `console`."""

    every: int = Field(1, ge=1, description="Print a line each so many steps; a terminal's live view shows every step.")
    sample_every: int = Field(10, ge=0, description="Print one episode each so many steps; 0 for none.")
    sample_characters: int = Field(2000, ge=100, description="A printed episode is cut in the middle to this length.")
    metrics: list[str] = Field(
        default_factory=list, description="Metrics to show besides the usual ones, by their names in metrics.jsonl."
    )
    live: bool | None = Field(None, description="A view that is drawn in place; None for where there is a terminal.")
    color: bool | None = Field(None, description="None for where there is a terminal and NO_COLOR isn't set.")


class JsonlOptions(_Options):
    """Options of `jsonl`."""

    path: str = Field("-", min_length=1, description="A file that lines are added to; - for standard output.")
    kinds: list[str] = Field(
        default_factory=list, description="Only reports of these kinds: train, eval …; all if empty."
    )


class TensorboardOptions(_Options):
    """Options of `tensorboard`."""

    directory: str | None = Field(
        None, description="Folder of event files; None for `tensorboard` in the run's folder."
    )
    flush_seconds: int = Field(30, ge=1, description="Events reach the disk at least this often.")

    def check_files(self) -> None:
        """Raises ConfigError where the package isn't installed."""
        if importlib.util.find_spec("tensorboard") is None:
            raise ConfigError("needs the package tensorboard: pip install 'toolrl[tensorboard]'")
