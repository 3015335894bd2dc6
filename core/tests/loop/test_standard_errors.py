"""Standard errors equal those of a regression with cluster-robust errors, intervals of shares those of the papers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolrl.loop.metrics import newcombe, paired_difference, share_interval, standard_error, wilson

np = pytest.importorskip("numpy")


def sandwich(rows: list[tuple[int, list[float], float]]) -> float:
    """The standard error of the last coefficient of least squares, clustered, with C / (C − 1); rows of (cluster,
    regressors, value)."""
    clusters, x, y = (
        np.array([it[0] for it in rows]),
        np.array([it[1] for it in rows]),
        np.array([it[2] for it in rows]),
    )
    bread = np.linalg.inv(x.T @ x)
    residuals = y - x @ (bread @ x.T @ y)
    scores = np.array([x[clusters == it].T @ residuals[clusters == it] for it in np.unique(clusters)])
    variance = bread @ (scores.T @ scores) @ bread * len(scores) / (len(scores) - 1)
    return float(np.sqrt(variance[-1, -1]))


@pytest.mark.parametrize("seed", range(20))
def test_unbalanced_clusters(seed: int) -> None:
    chance = np.random.default_rng(seed)
    tasks = int(chance.integers(3, 30))
    values, baseline = (
        [
            (chance.normal(chance.normal(), 1.0, count) * 10.0 ** chance.integers(-3, 4)).tolist()
            for count in chance.integers(0, 6, tasks)
        ]
        for _ in range(2)
    )
    values[0], values[1], baseline[2] = [1.0], [0.0, 3.0], [2.0, 1.0]
    rows = [(task, [1.0, 1.0], value) for task, of in enumerate(values) for value in of]
    own = sandwich([(task, [1.0], value) for task, _, value in rows])
    assert standard_error(values) == pytest.approx(own, rel=1e-9)
    rows += [(task, [1.0, 0.0], value) for task, of in enumerate(baseline) for value in of]
    assert standard_error(values, baseline) == pytest.approx(sandwich(rows), rel=1e-9)


def test_with_one_episode_a_task_they_are_the_textbooks() -> None:
    values, baseline = np.random.default_rng(0).normal(size=(2, 40))
    alone, other = [[it] for it in values.tolist()], [[it] for it in baseline.tolist()]
    assert standard_error(alone) == pytest.approx(values.std(ddof=1) / 40**0.5)
    assert standard_error(alone, other) == pytest.approx((values - baseline).std(ddof=1) / 40**0.5)


def test_one_task_has_none() -> None:
    assert standard_error([[1.0, 0.0], []]) is None
    assert standard_error([[1.0], [1.0]], [[], []]) == 0.0


# Intervals of shares.


def ones(correct: int, tasks: int) -> list[list[float]]:
    return [[float(number < correct)] for number in range(tasks)]


@pytest.mark.parametrize(("correct", "tasks"), [(0, 48), (48, 48), (1, 10), (7, 8), (94, 100), (500, 1000)])
def test_with_one_episode_a_task_the_interval_is_wilsons(correct: int, tasks: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(correct, tasks).proportion_ci(method="wilson")
    assert share_interval(ones(correct, tasks)) == pytest.approx((expected.low, expected.high), rel=1e-9)


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0, 0.5]), max_size=4), min_size=2, max_size=9), st.data())
def test_intervals_hold_the_value_and_stay_in_range(values: list[list[float]], data: st.DataObject) -> None:
    baseline = [data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=len(it), max_size=len(it))) for it in values]
    interval, difference = share_interval(values), paired_difference(values, baseline, shares=True)
    if interval is None or difference is None:
        return
    share = sum(map(sum, values)) / sum(map(len, values))
    assert 0.0 <= interval[0] <= share + 1e-12
    assert share - 1e-12 <= interval[1] <= 1.0
    assert difference["low"] + 1e-12 >= -1.0
    assert difference["low"] <= difference["value"] + 1e-12
    assert difference["value"] <= difference["high"] + 1e-12
    assert difference["high"] <= 1.0 + 1e-12


def test_episodes_of_one_task_that_end_alike_count_once() -> None:
    once, often = ones(7, 10), [it * 4 for it in ones(7, 10)]
    assert share_interval(often) == pytest.approx(share_interval(once))
    mixed = [[1.0, 0.0, 1.0, 1.0]] * 10  # Tasks that are all alike: each episode counts.
    assert share_interval(mixed) == pytest.approx(share_interval(ones(30, 40)))


def test_what_is_no_share_has_no_interval() -> None:
    assert share_interval([[1.5], [0.0]]) is None
    assert share_interval([[1.0, 0.0]]) is None


def test_a_difference_of_independent_shares_has_newcombes_interval() -> None:
    """56 of 70 against 48 of 80: Newcombe, Statistics in Medicine 17 (1998), 873-890, table II (a), method 10."""
    own, other = (56 / 70, *wilson(56 / 70, 70)), (48 / 80, *wilson(48 / 80, 80))
    assert newcombe(own, other, 0.0) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_a_paired_difference_uses_the_correlation_of_the_pairs() -> None:
    """A table of 43 pairs: both, only the first, only the second, neither."""
    both, first, second, neither = 20, 3, 12, 8
    pairs = [(1.0, 1.0)] * both + [(1.0, 0.0)] * first + [(0.0, 1.0)] * second + [(0.0, 0.0)] * neither
    n = len(pairs)
    p, q = (both + first) / n, (both + second) / n
    margins = (both + first) * (second + neither) * (both + second) * (first + neither)
    phi = (both * neither - first * second) / margins**0.5
    found = paired_difference([[a] for a, _ in pairs], [[b] for _, b in pairs], shares=True)
    assert found is not None
    expected = newcombe((p, *wilson(p, n)), (q, *wilson(q, n)), phi)
    assert (found["low"], found["high"]) == pytest.approx(expected, rel=1e-9)
    apart = newcombe((p, *wilson(p, n)), (q, *wilson(q, n)), 0.0)
    assert found["high"] - found["low"] < apart[1] - apart[0], "pairs that go together say more"
