"""The order of the data: a pure function of seed and position."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.errors import DataError
from toolrl.loop.data import EndlessOrder

rows = st.integers(1, 20).map(lambda count: list(range(100, 100 + count)))
counts = st.integers(0, 50)


@given(rows, st.integers(0, 5), st.booleans(), st.lists(st.integers(0, 12), max_size=8), counts)
def test_a_run_in_parts_takes_what_a_run_in_one_takes(
    rows: list[int], seed: int, shuffle: bool, steps: list[int], start: int
) -> None:
    one = EndlessOrder(rows, seed=seed, shuffle=shuffle)
    whole = one.take(start, sum(steps))
    taken: list[int] = []
    for step in steps:
        # A new object each time, as after a restart.
        taken += EndlessOrder(rows, seed=seed, shuffle=shuffle).take(start + len(taken), step)
    assert taken == whole
    assert one.take(start, sum(steps)) == whole, "what was taken before doesn't matter"


@given(rows, st.integers(0, 5), st.booleans(), st.integers(0, 5))
def test_each_epoch_holds_every_row_once(rows: list[int], seed: int, shuffle: bool, epoch: int) -> None:
    taken = EndlessOrder(rows, seed=seed, shuffle=shuffle).take(epoch * len(rows), len(rows))
    assert Counter(taken) == Counter(rows)


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="the data set is empty"):
        EndlessOrder([], seed=0)
