"""The parts that can be measured, and the settings that each gets."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class NotHereError(Exception):
    """A part can't be measured here, and nothing is wrong: a peer isn't installed, or there is no data."""


class NotYetError(Exception):
    """A part was stopped by the clock and goes on with the next call."""

    def __init__(self, message: str, figures: dict[str, Any]) -> None:
        super().__init__(message)
        self.figures = figures


@dataclass(frozen=True)
class Part:
    """One thing to measure."""

    module: str
    """Beside this file; its `run(settings)` gives the figures, its `headline(figures)` one line."""
    seconds: float
    """That it takes on a fast card, about: with less left it isn't begun."""
    limit: float
    """After which it is ended."""
    of_model: bool = True
    """Whether it is measured for each model."""


PARTS = {
    "card": Part("card", 30, 180, of_model=False),
    "decode": Part("decode", 60, 420),
    "update": Part("update", 60, 420),
    "exact": Part("exact", 60, 420),
    "resume": Part("resume", 90, 480, of_model=False),
    "trl": Part("peer", 90, 540, of_model=False),
    "learn": Part("learn", 60, 7200),
}


@dataclass(frozen=True)
class Settings:
    """Of one part. Passes through a file, so it holds plain values only."""

    device: str
    dry: bool
    """Sizes that a CPU does in seconds."""
    work: str
    """The folder for all that isn't a result."""
    model: str = ""
    """The model's folder; empty for a part without one."""
    data: str | None = None
    tool: str = "python"
    steps: int = 60
    group_size: int = 8
    prompts: int = 32
    learning_rate: float = 1e-6
    seconds_left: float | None = None
    """Until the caller's time is over; None for as long as it takes."""
    again: bool = False
    """Whether the part was done before, and nothing of that is to be kept."""
    card: dict[str, Any] = field(default_factory=dict)
    """What the part `card` found; empty where it failed."""

    @property
    def kind(self) -> str:
        """Of the results: those of different kinds don't stand in one file, as parts use each other's figures."""
        return "dry run" if self.dry else self.device.partition(":")[0]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Settings:
        return cls(**json.loads(text))
