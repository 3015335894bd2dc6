"""What a run's command and its workers send each other. All of it pickles; nothing heavy is imported."""

from __future__ import annotations

import pickle
import signal
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolrl.config.load import LoadedConfig
from toolrl.errors import ToolrlError
from toolrl.loop.ranks import LostRanksError
from toolrl.rollouts.environment import Limits
from toolrl.types import Task

if TYPE_CHECKING:
    from toolrl_plugin_torch.probe import Probe
    from toolrl_plugin_torch.sharding.collective_group import Rendezvous

KEPT_LINES = 20
"""Last lines of a worker's log in a message."""


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is built from: a checked config and paths. Plugins are found on the worker by their entry points,
    and components are built there."""

    number: int
    """Of its place among the workers, from 0; one that replaces another has the same."""
    loaded: LoadedConfig = field(repr=False)
    source: str
    """Where the model is loaded from; its weights are replaced by those that are handed over."""
    dtype: str
    """torch's name of the type that the run computes in."""
    device: str
    cwd: str
    """The driver's folder, which relative paths of the config start at."""
    run_dir: str

    @property
    def log_path(self) -> Path:
        """What the worker's process prints and logs."""
        return Path(self.run_dir) / "workers" / f"worker-{self.number}.log"


@dataclass(frozen=True)
class GroupOrder:
    """A group that a worker is to sample."""

    key: int
    """Unique in the run's process."""
    task: Task
    number: int
    group_size: int
    limits: Limits
    round_id: str
    training: bool = True

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.round_id}/{self.number}/{self.task.id}"


@dataclass(frozen=True)
class WeightUpdate:
    """Weights of one version on their way to the workers."""

    version: int
    digests: Mapping[str, int] = field(default_factory=dict)
    """Of each of the trainer's tensors."""
    probe: Probe | None = None
    """What they compute of a fixed text, for an engine that holds the weights itself."""
    rendezvous: Rendezvous | None = None
    """Where they are broadcast; None before the receiver is known."""

    @property
    def place(self) -> Rendezvous:
        """Where they are broadcast, for the receiver."""
        assert self.rendezvous is not None, "the trainer sets it"
        return self.rendezvous


@dataclass
class WorkerReport:
    """Events on a worker since its last report."""

    ended: dict[int, int] = field(default_factory=dict)
    """By group: episodes that ended and freed their place."""
    log: list[tuple[int, str, str]] = field(default_factory=list)
    """Level, logger and text of each record."""
    status: dict[str, Any] | None = None
    """What the worker does, for `toolrl status`."""


def pickled(value: Any, failure: ToolrlError) -> bytes:
    """A value's pickle. Raises `failure` with the reason where it has none."""
    try:
        return pickle.dumps(value)
    except Exception as error:
        failure.message += f": {type(error).__name__}: {error}"
        raise failure from error


def portable(error: Exception) -> Exception:
    """The error as it arrives in another process; one that doesn't pickle becomes a ToolrlError with the same text."""
    try:
        copy = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever a plugin's exception does when it is pickled
        copy = None
    if isinstance(copy, Exception):
        return copy
    return ToolrlError(f"{type(error).__name__}: {error}", hint="".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class RankOrder:
    """What a trainer worker's process is to do."""

    loaded: LoadedConfig = field(repr=False)
    cwd: str
    """The command's folder, which relative paths of the config start at."""
    resume: bool
    overwrite: bool
    json: bool
    """Whether the run's summary is printed as JSON."""
    rank: int = 0
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By which the ranks find each other, as torchrun sets it."""


@dataclass(frozen=True)
class RankEnd:
    """How a rank's process ended."""

    status: int | None
    """As `Popen.returncode`; None where the process is lost with its host."""
    last_output: str = ""
    """The end of its output, or why the host is lost."""

    @property
    def killed(self) -> bool:
        """Whether the process ended by a signal or with its host."""
        return self.status is None or self.status < 0

    @property
    def lost_others(self) -> bool:
        """Whether the rank ended because another one was lost without a report."""
        return self.status == LostRanksError.exit_status

    def describe(self) -> str:
        """What happened, and the last lines of its log."""
        if self.status is None:
            return f"is lost ({self.last_output})"
        lines = [f"  | {line}" for line in self.last_output.splitlines() if line.strip()][-KEPT_LINES:]
        words = "\n".join(["its last log lines:", *lines]) if lines else "it logged nothing"
        if self.status < 0:
            return f"was ended by {signal.Signals(-self.status).name}; {words}"
        return f"{'lost the other ranks' if self.lost_others else f'ended with status {self.status}'}; {words}"
