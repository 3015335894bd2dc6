"""Surrogates, divergences and importance weights against values worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from toolrl_plugin_torch.algorithm import AlgorithmConfig, ImportanceConfig
from toolrl_plugin_torch.objective.divergence import kl_estimate
from toolrl_plugin_torch.objective.importance import importance_weights
from toolrl_plugin_torch.objective.surrogate import (
    cispo_surrogate,
    clipped_surrogate,
    clipped_tokens,
    log_ratio,
    own_gradients,
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


def test_the_sequences_ratio_is_the_geometric_mean_over_its_trained_tokens() -> None:
    """Ratios 2 and 8 are trained, that of 100 is not: the sequence's is 4. Its gradient is shared out equally."""
    mask = torch.tensor([[True, True, False], [False, False, False]])
    logprobs = torch.tensor([[2.0, 8.0, 100.0], [3.0, 3.0, 3.0]]).log().requires_grad_()
    ratio = log_ratio(logprobs, torch.zeros(2, 3), mask, "sequence")
    assert ratio[0].exp().tolist() == pytest.approx([4.0] * 3)
    assert ratio[1].tolist() == [0.0] * 3
    ratio[0, 0].backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[0.5, 0.5, 0.0], [0.0] * 3]


def test_the_tokens_ratio_is_0_outside_of_the_mask() -> None:
    mask = torch.tensor([[True, False]])
    assert log_ratio(torch.tensor([[-1.0, -1.0]]), torch.tensor([[-3.0, -9.0]]), mask, "token").tolist() == [[2.0, 0.0]]


@pytest.mark.parametrize(
    ("estimator", "expected"), [("k1", [0.0, -1.0]), ("k2", [0.0, 0.5]), ("k3", [0.0, math.e - 2])]
)
def test_divergences(estimator: Any, expected: list[float]) -> None:
    values = kl_estimate(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0]), estimator)
    assert values.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("how", "expected", "capped"),
    [
        (ImportanceConfig(level="token", mode="truncate", cap=3.0), [2.0, 3.0, 0.0], [False, True, False]),
        (ImportanceConfig(level="token", mode="reject", cap=3.0), [2.0, 0.0, 0.0], [False, True, False]),
        (ImportanceConfig(level="sequence", mode="truncate", cap=10.0), [10.0, 10.0, 0.0], [True, True, False]),
        (ImportanceConfig(level="sequence", mode="truncate", cap=20.0), [16.0, 16.0, 0.0], [False, False, False]),
        (ImportanceConfig(level="mean", mode="reject", cap=3.9), [0.0, 0.0, 0.0], [True, True, False]),
        (ImportanceConfig(level="mean", mode="truncate", cap=5.0), [4.0, 4.0, 0.0], [False, False, False]),
    ],
    ids=str,
)
def test_importance(how: ImportanceConfig, expected: list[float], capped: list[bool]) -> None:
    """Twice and eight times as likely now as when they were drawn; the third token is not trained."""
    mask = torch.tensor([[True, True, False]])
    behaviour = torch.tensor([[-3.0, -3.0, -3.0]])
    proximal = (behaviour + torch.tensor([[2.0, 8.0, 5.0]]).log()).requires_grad_()
    weights, above = importance_weights(proximal, behaviour, mask, how)
    assert weights.tolist()[0] == pytest.approx(expected)
    assert above.tolist()[0] == capped
    assert not weights.requires_grad


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


def test_a_shared_advantage_gives_the_gradient_of_the_sequences_ratio() -> None:
    """GSPO and GSPO-token are the same then."""
    values = torch.tensor([[0.3, -0.2, 0.9, 0.1]], dtype=torch.float64)
    mask, gradients = torch.tensor([[False, True, True, True]]), []
    for own in (False, True):
        logprobs = values.clone().requires_grad_()
        ratio = log_ratio(logprobs, torch.zeros_like(values), mask, "sequence")
        ratio = own_gradients(ratio, logprobs) if own else ratio
        (clipped_surrogate(ratio, torch.full_like(values, 1.5), clip_of(0.9, 0.9)) * mask).sum().backward()
        gradients.append(logprobs.grad)
    assert torch.allclose(*gradients, atol=1e-12)
