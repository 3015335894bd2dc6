"""Standard errors equal those of a regression with cluster-robust errors, in float64."""

from __future__ import annotations

import pytest

from toolrl.loop.metrics import standard_error

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
