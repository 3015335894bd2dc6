"""Surrogates, divergences and importance weights against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.objective.surrogate import (
    cispo_surrogate,
    clipped_surrogate,
    clipped_tokens,
)

RATIOS = torch.tensor([[0.5, 1.0, 2.0]]).log()
ONES = torch.ones(1, 3)


def clip_of(low: float, high: float, **settings: Any) -> AlgorithmConfig:
    return AlgorithmConfig(clip_low=low, clip_high=high, **settings)


def test_the_clip_acts_on_the_side_that_the_advantage_pushes_to() -> None:
    clip = clip_of(0.2, 0.3)
    assert clipped_surrogate(RATIOS, ONES, clip).tolist()[0] == pytest.approx([-0.5, -1.0, -1.3])
    assert clipped_surrogate(RATIOS, -ONES, clip).tolist()[0] == pytest.approx([0.8, 1.0, 2.0])
    up, down = clipped_tokens(RATIOS, ONES, clip), clipped_tokens(RATIOS, -ONES, clip)
    assert [side.tolist()[0] for side in up] == [[False] * 3, [False, False, True]]
    assert [side.tolist()[0] for side in down] == [[True, False, False], [False] * 3]


def test_the_dual_clip_bounds_what_a_negative_advantage_costs() -> None:
    ratios = torch.tensor([[0.5, 2.0, 9.0]]).log()
    clip = clip_of(0.2, 0.2, clip_dual=3.0)
    assert clipped_surrogate(ratios, -2 * ONES, clip).tolist()[0] == pytest.approx([1.6, 4.0, 6.0])
    assert clipped_surrogate(ratios, ONES, clip).tolist()[0] == pytest.approx([-0.5, -1.2, -1.2])


def test_cispo_bounds_the_weight_and_keeps_every_gradient() -> None:
    """Weights 0.8, 1 and 1.3, with advantage 2: the gradient of each log-probability is −2 times its weight."""
    logprobs = torch.tensor([[-1.0, -2.0, -3.0]], requires_grad=True)
    losses = cispo_surrogate(RATIOS, logprobs, 2 * ONES, clip_of(0.2, 0.3))
    losses.sum().backward()
    assert losses.tolist()[0] == pytest.approx([1.6, 4.0, 7.8])
    assert logprobs.grad is not None
    assert logprobs.grad.tolist()[0] == pytest.approx([-1.6, -2.0, -2.6])
    low, high = clipped_tokens(RATIOS, -ONES, clip_of(0.2, 0.3, surrogate="cispo"))
    assert (low.tolist()[0], high.tolist()[0]) == ([True, False, False], [False, False, True])


@pytest.mark.parametrize("dual", [None, 3.0])
@pytest.mark.parametrize("advantage", [1.0, 0.0, -1.0])
@pytest.mark.parametrize("far", [100.0, 1e4, math.inf, -100.0, -1e4, -math.inf])
def test_a_ratio_that_no_number_holds_breaks_no_gradient(far: float, advantage: float, dual: float | None) -> None:
    """An engine may report −9999 for a token that it sampled. The other token's gradient is as ever."""
    logprobs = torch.tensor([[far, 0.0]], requires_grad=True)
    clip = clip_of(0.2, 0.2, clip_dual=dual)
    losses = clipped_surrogate(logprobs, torch.full((1, 2), advantage), clip)
    losses.sum().backward()
    assert bool(losses.isfinite().all())
    assert logprobs.grad is not None
    assert logprobs.grad.tolist()[0] == pytest.approx([0.0, -advantage])
    if far > 0 and (dual or advantage >= 0):
        assert losses[0, 0].item() == pytest.approx({1.0: -1.2, 0.0: 0.0, -1.0: 3.0}[advantage])
