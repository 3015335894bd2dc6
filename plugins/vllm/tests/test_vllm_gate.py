"""The comparison of log-probabilities after updates: what stops a run, and what is chance."""

from __future__ import annotations

import logging
import math
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch", reason="log-probabilities are compared with a trainer, which has torch")

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext
from toolrl_plugin_torch.probe import Probe
from toolrl_plugin_vllm.token_engine import TokenEngine


class Engine(TokenEngine):
    """An engine whose log-probabilities are the trainer's but for `distance`."""

    distance = 0.0
    start = update_weights = hold = stop = _sample = None  # type: ignore[assignment]

    async def _prompt_logprobs(self, ids: list[int]) -> list[float]:
        return [-1.0 + self.distance] * (len(ids) - 1)


def engine(rounding: float | None, tolerance: float | None = None) -> Any:
    Engine.__abstractmethods__ = frozenset()
    probe = Probe(list(range(20)), [-1.0] * 19, rounding)
    return Engine(BuildContext("vllm"), SimpleNamespace(probe=lambda: probe), tolerance)


async def after(made: Any, *distances: float, digests: bool = True) -> int:
    """How many comparisons pass before one ends the run."""
    for count, made.distance in enumerate(distances):
        try:
            await made._compare("vLLM", digests=digests)
        except EngineError:
            return count
    return len(distances)


NEAR, OVER, FAR = 0.01, 0.03, 0.05
"""With a bound of 0.02."""


@pytest.mark.parametrize(
    ("distances", "passed"),
    [
        ((OVER,), 0),
        ((NEAR, OVER), 1),
        ((NEAR, NEAR, OVER, OVER, OVER, OVER), 6),
        ((NEAR, NEAR, FAR, NEAR, FAR, OVER, FAR), 7),
        ((NEAR, NEAR, FAR, FAR), 3),
        ((NEAR, NEAR, math.inf), 2),
        ((NEAR, NEAR, math.nan), 2),
    ],
)
async def test_a_passing_distance_after_many_updates_is_a_warning(
    caplog: pytest.LogCaptureFixture, distances: tuple[float, ...], passed: int
) -> None:
    made = engine(0.02)
    with caplog.at_level(logging.WARNING):
        assert await after(made, *distances) == passed
    beyond = sum(it > 0.02 for it in distances[:passed])
    assert caplog.text.count("the run goes on") == beyond


@pytest.mark.parametrize(
    ("rounding", "tolerance", "digests"), [(None, None, True), (0.02, None, False), (0.02, 0.02, True)]
)
async def test_in_float32_without_digests_or_if_the_user_gave_it_the_bound_always_holds(
    rounding: float | None, tolerance: float | None, digests: bool
) -> None:
    assert await after(engine(rounding, tolerance), 0.0, 0.0, 0.0, OVER, digests=digests) == 3
