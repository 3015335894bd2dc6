"""Several data sets as one, and the order in which their rows are trained on.

The order is cut into rounds. In each round every data set has the same number of positions: its number of rows, or its
share of the round. A data set goes on from round to round where it stopped, through epochs of its own, so all of its
rows are used equally often. Which row is at a position is a function of the seed and the position alone.
"""

from __future__ import annotations

import heapq
import random
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import accumulate, islice, pairwise

from toolrl.loop.data import CheckedTasks, EndlessOrder, GoodTasks, data_digest
from toolrl.protocols import TaskSource, iterate
from toolrl.types import Task

LEAST_ROUND = 1000
"""Positions of a round at least, so that shares are kept to 0.1 % also where there are few rows."""


class NamedTasks:
    """A data set of a list: its tasks know its name, and the environment that the list gives it."""

    def __init__(self, source: TaskSource, name: str, environment: str | None = None) -> None:
        self._source = source
        self._name = name
        self._environment = environment

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Task:
        task = self._source[index]
        if not isinstance(task, Task):
            return task  # reported by CheckedTasks
        environment = self._environment if task.environment is None else task.environment
        return replace(task, id=f"{self._name}/{task.id}", dataset=self._name, environment=environment)

    @property
    def where(self) -> Callable[[int], str] | None:
        """Gives a row's place; None if the data set knows none."""
        return getattr(self._source, "where", None)

    def digest(self) -> str | None:
        """A digest of the rows; None if the data set gives none."""
        return data_digest(self._source)


@dataclass(frozen=True)
class Part:
    """A data set of a mixture."""

    name: str
    tasks: CheckedTasks | GoodTasks
    share: float | None = None
    """Relative to the other shares; None in all parts of a mixture by size."""


class Mixture:
    """The tasks of several data sets, one data set after the other."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self._starts = [0, *accumulate(len(part.tasks) for part in parts)]

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of a mixture of {len(self)}")
        part = bisect_right(self._starts, index) - 1
        return self.parts[part].tasks[index - self._starts[part]]

    def first(self, count: int | None) -> list[Task]:
        """The first tasks of each data set in proportion to its rows, `count` in all; None for all tasks."""
        if count is None:
            return list(iterate(self))
        rows = [iter(range(start, end)) for start, end in pairwise(self._starts)]
        turns = evenly([len(part.tasks) for part in self.parts])
        return [self[next(rows[part])] for part in islice(turns, count)]

    def digest(self) -> str:
        """A digest of the names and the rows; a data set that gives no digest counts by its number of rows."""
        found = blake2b(digest_size=16)
        for part in self.parts:
            found.update(f"{part.name} {len(part.tasks)} {data_digest(part.tasks)}\n".encode())
        return found.hexdigest()


class MixedOrder(EndlessOrder[Task]):
    """The endless order of a mixture."""

    def __init__(self, mixture: Mixture, *, seed: int, shuffle: bool = True, where: str | None = None) -> None:
        super().__init__(mixture, seed=seed, shuffle=shuffle, where=where)
        parts = mixture.parts
        sizes = [len(part.tasks) for part in parts]
        self._starts = [0, *accumulate(sizes)]
        self._parts = [EndlessOrder(it.tasks, seed=f"{seed}/{it.name}", shuffle=shuffle, where=where) for it in parts]
        self._counts = round_counts(sizes, [part.share for part in parts])
        self._length = sum(self._counts)
        self._round = -1
        self._turns = array("Q")
        """By position in the round: the data set, and how many tasks of it come before in the round."""

    def visit(self, place: int) -> tuple[int, int]:
        number, turn = divmod(place, self._length)
        if number != self._round:
            self._begin(number)
        before, part = divmod(self._turns[turn], len(self._parts))
        row, epoch = self._parts[part].visit(number * self._counts[part] + before)
        return self._starts[part] + row, epoch

    def _begin(self, number: int) -> None:
        turns = list(evenly(self._counts))
        if self._shuffle:
            random.Random(f"{self._seed}/{number}").shuffle(turns)
        before, parts = [0] * len(self._parts), len(self._parts)
        self._turns = array("Q", bytes(8 * len(turns)))
        for turn, part in enumerate(turns):
            self._turns[turn] = before[part] * parts + part
            before[part] += 1
        self._round = number


def parts_of(source: TaskSource) -> Sequence[TaskSource]:
    """The data sets of a mixture, or the one that a source is."""
    return [part.tasks for part in source.parts] if isinstance(source, Mixture) else [source]


def first_tasks(source: TaskSource, count: int | None) -> list[Task]:
    """The first `count` tasks, of a mixture some of each data set; None for all."""
    return source.first(count) if isinstance(source, Mixture) else list(islice(iterate(source), count))


def endless(source: TaskSource, *, seed: int, shuffle: bool, where: str) -> EndlessOrder[Task]:
    """The order in which tasks are trained on; `where` is their place in the config."""
    if isinstance(source, Mixture):
        return MixedOrder(source, seed=seed, shuffle=shuffle, where=where)
    return EndlessOrder(source, seed=seed, shuffle=shuffle, where=where)


def round_counts(sizes: Sequence[int], shares: Sequence[float | None]) -> list[int]:
    """The positions of each data set in a round: its rows, or with shares the nearest whole numbers, at least 1."""
    weights = [share for share in shares if share is not None]
    if not weights:
        return list(sizes)
    length, total = max(sum(sizes), LEAST_ROUND), sum(weights)
    exact = [length * weight / total for weight in weights]
    counts = [max(int(count), 1) for count in exact]
    # The largest remainders get what rounding down left over.
    for index in sorted(range(len(exact)), key=lambda it: counts[it] - exact[it])[: max(length - sum(counts), 0)]:
        counts[index] += 1
    return counts


def evenly(counts: Sequence[int]) -> Iterator[int]:
    """The numbers of the data sets, each as often as `counts` says and evenly spread."""

    def turns(part: int, count: int) -> Iterator[tuple[float, int]]:
        return (((2 * number + 1) / count, part) for number in range(count))

    return (part for _, part in heapq.merge(*map(turns, range(len(counts)), counts)))
