"""What the first rank's lines of metrics say of restarts: each once, also where lines are dropped again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from toolrl.cluster.rank_report import RankReport
from toolrl.cluster.trainer_messages import Counted, StepDone, TrainerOrder
from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder

ORDER: Any = TrainerOrder(0, 2, None, "/", "/run", resume=False, overwrite=False, json=False)  # type: ignore[arg-type]
RESTARTED, REPEATED = "cluster/restarted_trainers", "cluster/repeated_steps"


class Command:
    """What the command keeps over generations, and a folder with a checkpoint each second step."""

    def __init__(self, path: Path) -> None:
        self.folder = RunFolder.create(path, {}, total_steps=100)
        self.order: TrainerOrder = ORDER
        self.reached = 0

    def generation(self, first: int, last: int) -> None:
        """From the checkpoint `first` to the step `last`."""
        told: list[Any] = []
        report = RankReport(self.order, told.append)
        report.over()
        self.folder.rewind(first)
        watch = report.counting(lambda: {"cluster/workers": 2.0}, self.folder)
        for step in range(first + 1, last + 1):
            line = StepReport(step, "train", watch())
            self.folder.metrics.append(line)
            report.toolrl_step_end(self.folder, line)
        counted = next((it for it in told if isinstance(it, Counted)), None)
        self.reached = max([self.reached, *(it.step for it in told if isinstance(it, StepDone))])
        order = self.order
        if counted is not None:
            before = counted.told if order.told is None else order.told
            order = replace(order, told=before, repeated=order.repeated + counted.repeated)
        self.order = replace(order, again=True, restarts=order.restarts + 1, reached=self.reached)

    def sums(self) -> tuple[float, float]:
        lines = self.folder.metrics_lines()
        return sum(it.metrics[RESTARTED] for it in lines), sum(it.metrics[REPEATED] for it in lines)


def test_restarts_and_repeated_steps_are_told_once(tmp_path: Path) -> None:
    command = Command(tmp_path / "run")
    command.generation(0, 5)
    assert command.sums() == (0, 0)
    command.generation(4, 7)
    assert command.sums() == (1, 1)
    lines = command.folder.metrics_lines()
    assert lines[4].metrics[RESTARTED] == 1.0
    assert lines[5].metrics[RESTARTED] == 0.0
    assert lines[4].metrics["cluster/trainer_workers"] == 2.0
    assert lines[4].metrics["cluster/workers"] == 2.0


def test_what_stood_in_lines_that_were_dropped_is_told_again(tmp_path: Path) -> None:
    command = Command(tmp_path / "run")
    command.generation(0, 5)
    command.generation(4, 5)  # It tells of one restart in the line of step 5, which is dropped.
    command.generation(4, 4)  # This one dies before it writes a line.
    command.generation(4, 8)
    restarts, repeated = command.sums()
    assert restarts == 3
    assert repeated == 2, "step 5 was done three times"


def test_counts_of_an_earlier_command_stay_its_own(tmp_path: Path) -> None:
    command = Command(tmp_path / "run")
    command.generation(0, 5)
    command.generation(4, 8)
    command.order, command.reached = ORDER, 0
    command.generation(8, 9)
    assert command.sums() == (1, 1)
    command.generation(8, 10)
    assert command.sums() == (2, 2)


def test_only_the_first_rank_counts(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {}, total_steps=1)
    report = RankReport(replace(ORDER, rank=1), lambda event: None)
    report.over()
    assert report.counting(dict, folder)() == {}
