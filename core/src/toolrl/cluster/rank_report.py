"""What a rank's process tells its trainer worker: that it is there, what it does, which steps are done.

The first rank also puts into its lines of metrics what was lost: how often the group began again, and steps that were
done again. A line may be dropped when the run goes back to a checkpoint, so counts aren't what was told last but what
the command knows less what stands in the lines that are left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from toolrl.cluster.trainer_messages import Beat, Began, Counted, StepDone, TrainerOrder
from toolrl.loop.run_phase import Doing
from toolrl.protocols import RunInfo, StepReport

EVERY = 2.0
"""Seconds between two beats."""
_RESTARTED, _REPEATED = "cluster/restarted_trainers", "cluster/repeated_steps"


Watch = Callable[[], Mapping[str, float]]


class Line(Protocol):
    """A line of metrics."""

    @property
    def metrics(self) -> Mapping[str, float]: ...


class Folder(Protocol):
    """The run's folder, as far as it is read here."""

    @property
    def start_step(self) -> int: ...

    def metrics_lines(self) -> Sequence[Line]: ...


class RankReport:
    """An observer of one rank's run. `tell` sends an event, from any thread."""

    def __init__(self, order: TrainerOrder, tell: Callable[[Any], None]) -> None:
        self._order = order
        self._tell = tell
        self._counted = False
        self._doing: Doing | None = None
        self._over = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def began(self, doing: Doing) -> None:
        """All is built. It is told what the run is busy with from now on."""
        self._doing = doing
        self._tell(Began())

    def counting(self, watch: Watch, folder: Folder) -> Watch:
        """What `watch` gives, and for the first rank what was lost."""
        if self._order.rank:
            return watch
        return lambda: {**watch(), **self.counts(folder)}

    def over(self) -> None:
        """Tell nothing more."""
        self._over.set()

    def toolrl_step_end(self, run: RunInfo, report: StepReport) -> None:
        """A step is complete."""
        if report.kind == "train":
            self._tell(StepDone(report.step))

    def counts(self, folder: Folder) -> dict[str, float]:
        """Metrics for the first rank's next line, which is to be written now."""
        restarted = repeated = 0.0
        if not self._counted:
            self._counted = True
            restarted, repeated = self._not_told(folder)
        return {
            "cluster/trainer_workers": float(self._order.size),
            "cluster/restarted_trainers": restarted,
            "cluster/repeated_steps": repeated,
        }

    def _not_told(self, folder: Folder) -> tuple[float, float]:
        order = self._order
        stands = _told(folder)
        before = stands if order.told is None else order.told
        again = max(0, order.reached - folder.start_step) if order.again else 0
        self._tell(Counted(before, again))
        return (
            order.restarts + before[_RESTARTED] - stands[_RESTARTED],
            order.repeated + again + before[_REPEATED] - stands[_REPEATED],
        )

    def _beat(self) -> None:
        while not self._over.wait(EVERY):
            self._tell(Beat(self._doing.what if self._doing is not None else "starting"))


def _told(folder: Folder) -> Mapping[str, float]:
    lines = folder.metrics_lines()
    return {name: sum(line.metrics.get(name, 0.0) for line in lines) for name in (_RESTARTED, _REPEATED)}
