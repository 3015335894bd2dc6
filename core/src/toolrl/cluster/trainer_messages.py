"""What the command, its trainer workers and their processes say to each other. All of it pickles; nothing heavy is
imported.

    command  —Ray→  TrainerHost (an actor for each rank)  —pipes→  the rank's process
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from toolrl.config.load import LoadedConfig


@dataclass(frozen=True)
class TrainerOrder:
    """What a rank's process is to do."""

    rank: int
    size: int
    loaded: LoadedConfig = field(repr=False)
    cwd: str
    """The command's folder, which relative paths of the config start at."""
    run_dir: str
    resume: bool
    overwrite: bool
    json: bool
    """Whether the run's summary is printed as JSON, and nothing else."""
    again: bool = False
    """Whether it takes the place of processes that have died."""
    address: str = ""
    """Of the first rank's node."""
    port: int = 0
    """There, which the ranks meet at."""
    token: str = field(default="", repr=False)
    """The secret by which they know each other."""
    restarts: int = 0
    """How often all began again so far."""
    repeated: int = 0
    """Steps that had to be done again by then."""
    reached: int = 0
    """The last step that was finished before."""
    told: Mapping[str, float] | None = None
    """Counts in lines of metrics that were there before the command; None where no process has read them yet."""

    @property
    def log_path(self) -> Path:
        """What the process prints and logs."""
        return Path(self.run_dir) / "workers" / f"trainer-{self.rank}.log"


@dataclass(frozen=True)
class Place:
    """Where a trainer worker is."""

    node: str
    """Name of the host."""
    address: str
    port: int
    """One that is free there."""


@dataclass(frozen=True)
class Began:
    """All is built; an older run that was to be deleted is."""


@dataclass(frozen=True)
class StepDone:
    """A step of training is complete, and its metrics are on the disk."""

    step: int


@dataclass(frozen=True)
class Counted:
    """The first rank is about to write its first line of metrics."""

    told: Mapping[str, float]
    """Counts in lines that were there before."""
    repeated: int
    """Steps that these processes do again."""


@dataclass(frozen=True)
class Beat:
    """The process is there, and busy with this."""

    doing: str


@dataclass(frozen=True)
class Ended:
    """How a rank's run ended: told by its process, or, where that is gone without a word, by its host."""

    status: int | None = None
    """The exit status, as the process tells it; None where an error ended it or it died."""
    error: bytes | None = None
    """Packed."""
    said: str = ""
    """The error as its process would have printed it, with the traceback."""
    death: str | None = None
    """What became of a process that told nothing."""


@dataclass
class Output:
    """What a process has printed, and how it is, since this was last asked."""

    out: bytes = b""
    err: bytes = b""
    events: list[Began | StepDone | Counted] = field(default_factory=list)
    doing: str = ""
    pid: int | None = None
    ended: Ended | None = None
