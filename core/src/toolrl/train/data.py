"""The order in which a run takes its tasks: a pure function of seed and position, so that a resumed run goes on exactly."""

from __future__ import annotations

import random

from toolrl.errors import DataError
from toolrl.protocols import TaskSource
from toolrl.types import Task


class TaskOrder:
    """An endless sequence of tasks over a source; each epoch is shuffled by a generator of its own."""

    def __init__(self, source: TaskSource, *, seed: int, shuffle: bool = True) -> None:
        if len(source) == 0:
            raise DataError("the data set is empty", hint="Check its path, split and limit.")
        self._source = source
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order: list[int] = []

    def take(self, position: int, count: int) -> list[Task]:
        """The tasks at positions position … position + count − 1 of the endless sequence."""
        return [self._at(position + offset) for offset in range(count)]

    def _at(self, position: int) -> Task:
        epoch, index = divmod(position, len(self._source))
        if not self._shuffle:
            return self._source[index]
        if epoch != self._epoch:
            self._order = list(range(len(self._source)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._source[self._order[index]]
