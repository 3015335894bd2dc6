"""Difficulty pools: tasks that are always or never solved are set aside, and sampled again now and then.

A task's pass rate is that of its last group: the share of correct answers. Where answers aren't judged it is their mean
reward, and a group of rewards that differ teaches, so its task isn't set aside. In every epoch a fixed share of the
rows that are set aside is sampled all the same, so that a task returns when it can be learned, or is forgotten. Pools
that only grow run dry: in prime-rl,
whose `easy_threshold` and `hard_threshold` these are, tasks returned on a resume only
(github.com/PrimeIntellect-ai/prime-rl/pull/2667).

What is skipped is a function of position and pass rates, which a checkpoint keeps, so a resumed run skips the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from toolrl.loop.data import EndlessOrder
from toolrl.types import Episode, Group, Task
from toolrl_plugin_torch.algorithm import DifficultyConfig


class DifficultyPools:
    """Decides which positions of an endless order are sampled. Without settings all are."""

    def __init__(
        self, order: EndlessOrder[Task], settings: DifficultyConfig | None = None, metric: str = "correct"
    ) -> None:
        """`metric` is algorithm.filter_metric."""
        self._order = order
        self._metric = metric
        self.settings = settings
        self._rates: dict[int, float] = {}
        """Pass rates of the rows that are set aside."""

    def next(self, position: int) -> int:
        """The first position from this on that is sampled. It is at most `revisit` epochs away."""
        while self._skips(position):
            position += 1
        return position

    def judge(self, groups: Iterable[tuple[int, Group]]) -> None:
        """Note the pass rates of groups, each with its position. A group without a scored episode says nothing."""
        for position, group in groups if self.settings is not None else ():
            row, found = self._order.row(position), outcomes(group.scored, self._metric)
            rate = sum(found) / len(found) if found else self._rates.get(row, None)
            self._rates.pop(row, None)
            teaches = len(set(found)) > 1 and found != [episode.correct for episode in group.scored]
            if rate is not None and not teaches and self._pool(rate) is not None:
                self._rates[row] = rate

    def kept(self) -> Mapping[int, float]:
        """What a checkpoint keeps: the pass rates of the rows that are set aside."""
        return dict(self._rates)

    def resume(self, rates: Mapping[int, float]) -> None:
        """Take up what a checkpoint kept, by the thresholds of now."""
        judged = rates.items() if self.settings is not None else ()
        self._rates = {row: rate for row, rate in judged if row < self._order.rows and self._pool(rate) is not None}

    def metrics(self) -> dict[str, float]:
        """Tasks by pool; `active` are those that aren't set aside."""
        if self.settings is None:
            return {}
        return {
            "tasks/solved": float(self._count("solved")),
            "tasks/unsolved": float(self._count("unsolved")),
            "tasks/active": float(self._order.rows - len(self._rates)),
        }

    def _skips(self, position: int) -> bool:
        if self.settings is None or not self._rates:
            return False
        row, epoch = self._order.visit(position)
        return row in self._rates and (epoch + row) % self.settings.revisit != 0

    def _pool(self, rate: float) -> str | None:
        assert self.settings is not None, "without settings nothing is judged"
        if self.settings.solved is not None and rate >= self.settings.solved:
            return "solved"
        return "unsolved" if self.settings.unsolved is not None and rate <= self.settings.unsolved else None

    def _count(self, pool: str) -> int:
        return sum(self._pool(rate) == pool for rate in self._rates.values())


def outcomes(episodes: Sequence[Episode], metric: str = "correct") -> list[float]:
    """How each episode came out by this filter_metric: whether it is correct, or its reward, also where a reward judges
    not all of them."""
    judged = [episode.correct for episode in episodes if episode.correct is not None]
    return judged if metric == "correct" and len(judged) == len(episodes) else [it.reward for it in episodes]
