"""The order of a mixture, its tasks and its metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.loop.data import CheckedTasks, EndlessOrder, GoodTasks
from toolrl.loop.mixture import MixedOrder, Mixture, NamedTasks, Part, first_tasks, parts_of, round_counts
from toolrl.types import Task
from toolrl_testing.fakes import make_task

ENVIRONMENTS = {"default": None, "maths": None}


def part(name: str, rows: int, share: float | None = None, environment: str | None = None) -> Part:
    tasks = [make_task("?", id=str(row)) for row in range(rows)]
    return Part(name, CheckedTasks(NamedTasks(tasks, name, environment), ENVIRONMENTS, f"data.train[{name}]"), share)


def ids(order: EndlessOrder[Task], start: int, count: int) -> list[str]:
    return [task.id for task in order.take(start, count)]


def test_by_size_each_row_is_taken_once_in_a_round() -> None:
    mixture = Mixture([part("a", 5), part("b", 3)])
    order = MixedOrder(mixture, seed=1)
    names = sorted(f"a/{row}" for row in range(5)) + sorted(f"b/{row}" for row in range(3))
    rounds = [ids(order, start, 8) for start in (0, 8, 16)]
    assert all(sorted(taken) == names for taken in rounds)
    assert rounds[0] != rounds[1]
    assert len({tuple(name[0] for name in taken) for taken in rounds}) > 1, "the data sets are shuffled together"


def test_shares_hold_and_rows_of_a_data_set_are_used_equally() -> None:
    order = MixedOrder(Mixture([part("a", 40, 3.0), part("b", 7, 1.0)]), seed=5)
    taken = Counter(ids(order, 0, 4000))
    assert sum(count for name, count in taken.items() if name.startswith("a/")) == 3000
    for name, rows, all_of in (("a", 40, 3000), ("b", 7, 1000)):
        counts = [taken[f"{name}/{row}"] for row in range(rows)]
        assert sum(counts) == all_of
        assert max(counts) - min(counts) <= 1


def test_unshuffled_data_sets_alternate_by_their_shares() -> None:
    mixture = Mixture([part("a", 4), part("b", 2)])
    order = MixedOrder(mixture, seed=0, shuffle=False)
    assert ids(order, 0, 7) == ["a/0", "b/0", "a/1", "a/2", "b/1", "a/3", "a/0"]
    assert [task.id for task in first_tasks(mixture, 3)] == ["a/0", "b/0", "a/1"]
    assert len(first_tasks(mixture, None)) == 6


@given(
    st.lists(st.tuples(st.integers(1, 30), st.floats(0.01, 100)), min_size=1, max_size=4),
    st.booleans(),
    st.booleans(),
    st.integers(0, 1200),
    st.integers(0, 9),
)
def test_a_position_alone_decides(
    sizes: Sequence[tuple[int, float]], by_size: bool, shuffle: bool, start: int, seed: int
) -> None:
    """An order that is asked in the middle, as after a resume, gives what one that ran up to there gives."""
    parts = [part(f"p{n}", size, None if by_size else share) for n, (size, share) in enumerate(sizes)]
    ran, resumed = (MixedOrder(Mixture(parts), seed=seed, shuffle=shuffle) for _ in range(2))
    before = [ran.visit(place) for place in range(start + 5)]
    assert [resumed.visit(place) for place in range(start, start + 5)] == before[start:]
    # An epoch is how often the row came before: difficulty pools revisit by it.
    counted: Counter[int] = Counter()
    for row, epoch in before:
        assert epoch == counted[row]
        counted[row] += 1


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0.001, 1000)), min_size=1, max_size=6))
def test_a_round_keeps_shares(given: Sequence[tuple[int, float]]) -> None:
    sizes, shares = zip(*given, strict=True)
    counts = round_counts(sizes, shares)
    length, total = max(sum(sizes), 1000), sum(shares)
    assert length <= sum(counts) <= length + len(sizes)
    for count, share in zip(counts, shares, strict=True):
        assert abs(count - length * share / total) < 1 or count == 1


def test_a_task_knows_its_data_set() -> None:
    own = make_task("?", id="1", environment="default")
    named = NamedTasks([own, make_task("?", id="1b")], "sums", "maths")
    first, second = named[0], named[1]
    assert (first.id, first.dataset, first.environment) == ("sums/1", "sums", "default")
    assert second.environment == "maths", "unless the row names one"


class Broken:
    """Rows of which the second can't be read."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Task:
        if index == 1:
            raise ValueError("no question")
        return make_task("?", id=str(index))


def test_bad_rows_are_named_by_their_place_and_left_out() -> None:
    bad = CheckedTasks(NamedTasks(Broken(), "b"), ENVIRONMENTS, "data.train[1]")
    mixture = Mixture([part("a", 2), Part("b", bad)])
    with pytest.raises(Exception, match="no question") as caught:
        mixture[3]
    assert "data.train[1], row 1" in str(caught.value)
    good = Mixture([part("a", 2), Part("b", GoodTasks(bad, "data.train[1]"))])
    assert [good[index].id for index in range(len(good))] == ["a/0", "a/1", "b/0", "b/2"]
    assert [it.left_out for it in parts_of(good) if isinstance(it, GoodTasks)] == [1]


def test_the_digest_covers_each_data_set() -> None:
    digests = {
        Mixture(parts).digest()
        for parts in ([part("a", 2), part("b", 3)], [part("a", 2), part("c", 3)], [part("a", 3), part("b", 3)])
    }
    assert len(digests) == 3
    assert Mixture([part("a", 2), part("b", 3)]).digest() in digests


def test_each_data_set_has_metrics() -> None:
    from toolrl.loop import metrics

    def episode(dataset: str, correct: float) -> Any:
        return SimpleNamespace(environment="default", task=SimpleNamespace(dataset=dataset), correct=correct,
                               failure=None, reward=correct, turns=())  # fmt: skip

    episodes = [episode("a", 1.0), episode("a", 0.0), episode("b", 1.0)]
    found = metrics._part_metrics(episodes, [(it, it.correct) for it in episodes])
    assert found["dataset/accuracy/a"] == 0.5
    assert found["dataset/accuracy/b"] == found["dataset/reward/b"] == 1.0
    assert not any(name.startswith("environment/") for name in found)
