"""Options of the observer `console`."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from toolrl.config.frame import OldNames


class ConsoleOptions(BaseModel):
    """Options of `console`."""

    model_config = ConfigDict(extra="forbid")
    old_names: ClassVar[OldNames] = {"color": None, "sample_characters": None}

    every: int = Field(1, ge=1, description="Print a line each so many steps; the view in place shows every step.")
    sample_every: int = Field(10, ge=0, description="Print one episode each so many steps; 0 for none.")
    metrics: list[str] = Field(
        default_factory=list, description="Metrics to show besides the usual ones, by their names in metrics.jsonl."
    )
    live: bool | None = Field(
        None, description="A view of the present phase that is drawn in place; None for where there is a terminal."
    )
