"""The order in which a run takes its data: a pure function of seed and position, so that a resumed run goes on."""

from __future__ import annotations

import random
from typing import Generic, Protocol, TypeVar

from toolrl.errors import DataError

T = TypeVar("T", covariant=True)


class Rows(Protocol[T]):
    """What can be counted and indexed: a TaskSource, a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> T: ...


class EndlessOrder(Generic[T]):
    """An endless sequence over rows; each epoch is shuffled by a generator of its own. Raises DataError for no rows."""

    def __init__(self, rows: Rows[T], *, seed: int, shuffle: bool = True, where: str | None = None) -> None:
        """`where` is the place in the config that names the rows, for the error."""
        if len(rows) == 0:
            raise DataError("the data set is empty", where=where, hint="Check its path, split and limit.")
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._epoch = -1
        self._order: list[int] = []

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self._rows)

    def take(self, position: int, count: int) -> list[T]:
        """What stands at positions position … position + count − 1 of the endless sequence."""
        return [self._at(place) for place in range(position, position + count)]

    def _at(self, place: int) -> T:
        epoch, index = divmod(place, len(self._rows))
        if not self._shuffle:
            return self._rows[index]
        if epoch != self._epoch:
            self._order = list(range(len(self._rows)))
            random.Random(f"{self._seed}/{epoch}").shuffle(self._order)
            self._epoch = epoch
        return self._rows[self._order[index]]
