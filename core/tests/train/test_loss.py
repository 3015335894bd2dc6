"""The loss against values worked out by hand, and its independence of how a step is cut."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch: pip install toolrl[train]")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from toolrl.train.loss import (  # noqa: E402
    LossStatistics,
    Normaliser,
    clipped_surrogate,
    kl_k3,
    mismatch_statistics,
    policy_loss,
    supervised_loss,
)

AGGREGATIONS = ("token_mean", "sequence_mean", "constant")
MASK = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 0]]).bool()


def test_the_clip_acts_on_the_side_that_the_advantage_pushes_to() -> None:
    ratios = torch.tensor([[0.5, 1.0, 2.0]])
    old = torch.full((1, 3), -2.0)
    up = clipped_surrogate(old + ratios.log(), old, torch.ones(1, 3), clip_low=0.2, clip_high=0.3)
    down = clipped_surrogate(old + ratios.log(), old, -torch.ones(1, 3), clip_low=0.2, clip_high=0.3)
    assert up.tolist()[0] == pytest.approx([-0.5, -1.0, -1.3])
    assert down.tolist()[0] == pytest.approx([0.8, 1.0, 2.0])


def test_k3_is_exp_minus_linear() -> None:
    values = kl_k3(torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0]))
    assert values.tolist() == pytest.approx([0.0, math.e - 2.0])


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [[0, 1 / 4, 1 / 4, 1 / 4], [0, 0, 1 / 4, 0]]),
        ("sequence_mean", [[0, 1 / 6, 1 / 6, 1 / 6], [0, 0, 1 / 2, 0]]),
        ("constant", [[0, 1 / 20, 1 / 20, 1 / 20], [0, 0, 1 / 20, 0]]),
    ],
)
def test_weights(aggregation: Any, expected: list[list[float]]) -> None:
    weights = Normaliser.of([MASK], aggregation, length=10).weights(MASK)
    assert weights.flatten().tolist() == pytest.approx([value for row in expected for value in row])


def test_constant_needs_a_length() -> None:
    with pytest.raises(ValueError, match="length"):
        Normaliser.of([MASK], "constant").weights(MASK)


@pytest.mark.parametrize(
    # The clipped term has no gradient. ∂ k3 / ∂ logprob = 1 − exp(1), and with the ratio as factor
    # 1.5 · (e − 2) + 1.5 · (1 − e) = −1.5: the ratio times logprob − reference.
    ("correction", "kl", "gradient"),
    [(False, math.e - 2, 1 - math.e), (True, 1.5 * (math.e - 2), -1.5)],
)
def test_a_whole_loss_by_hand(correction: bool, kl: float, gradient: float) -> None:
    """One token, ratio 1.5 clipped to 1.2, advantage 2, k3 of e − 2, entropy 0.7."""
    mask = torch.tensor([[False, True]])
    logprobs = torch.tensor([[0.0, -1.0]], requires_grad=True)
    loss, statistics = policy_loss(
        logprobs,
        torch.tensor([[0.0, 2.0]]),
        mask,
        Normaliser.of([mask], "token_mean"),
        old_logprobs_BT=torch.tensor([[0.0, -1.0 - math.log(1.5)]]),
        reference_logprobs_BT=torch.tensor([[0.0, 0.0]]),
        entropy_BT=torch.tensor([[0.0, 0.7]]),
        kl_coef=0.1,
        kl_correction=correction,
        entropy_coef=0.01,
    )
    assert loss.item() == pytest.approx(-2.4 + 0.1 * kl - 0.01 * 0.7)
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, 0.1 * gradient])
    metrics = statistics.metrics()
    assert metrics["clip/high"] == 1.0
    assert metrics["clip/low"] == 0.0
    assert metrics["kl"] == pytest.approx(math.e - 2)
    assert metrics["entropy"] == pytest.approx(0.7)
    assert metrics["ratio/mean"] == metrics["ratio/max"] == pytest.approx(1.5)
    assert metrics["approx_kl"] == pytest.approx(0.5 - math.log(1.5))
    assert metrics["loss/policy"] == pytest.approx(-2.4)
    assert metrics["loss/total"] == pytest.approx(loss.item())


def test_without_old_logprobs_the_gradient_is_the_policy_gradient() -> None:
    logprobs = torch.tensor([[0.0, -1.0, -2.0]], requires_grad=True)
    mask = torch.tensor([[False, True, True]])
    advantages = torch.tensor([[0.0, 2.0, -3.0]])
    loss, statistics = policy_loss(logprobs, advantages, mask, Normaliser.of([mask], "token_mean"))
    loss.backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, -1.0, 1.5])
    assert statistics.metrics()["ratio/max"] == 1.0


def test_what_is_outside_of_the_mask_cannot_reach_the_loss() -> None:
    logprobs = torch.tensor([[math.nan, -1.0, -math.inf]], requires_grad=True)
    poison = torch.tensor([[math.inf, -1.0, math.nan]])
    mask = torch.tensor([[False, True, False]])
    loss, statistics = policy_loss(
        logprobs, poison, mask, Normaliser.of([mask], "sequence_mean"),
        old_logprobs_BT=poison, reference_logprobs_BT=poison, entropy_BT=poison, kl_coef=1.0, entropy_coef=1.0,
    )  # fmt: skip
    loss.backward()
    assert math.isfinite(loss.item())
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert all(math.isfinite(value) for value in statistics.metrics().values())
    assert mismatch_statistics(logprobs, poison, mask).metrics()["logprob_mismatch/max"] == 0.0


@pytest.mark.parametrize(("name", "message"), [("kl_coef", "reference"), ("entropy_coef", "entropy")])
def test_a_coefficient_without_its_tensor_is_refused(name: str, message: str) -> None:
    arguments: dict[str, Any] = {name: 0.1}
    with pytest.raises(ValueError, match=message):
        policy_loss(torch.zeros(2, 4), torch.zeros(2, 4), MASK, Normaliser.of([MASK], "token_mean"), **arguments)


def test_mismatch() -> None:
    ours, engine = torch.tensor([[0.0, -1.0, -2.0, -3.0]]), torch.tensor([[9.0, -1.5, -2.0, -3.25]])
    metrics = mismatch_statistics(ours, engine, torch.tensor([[0, 1, 1, 1]])).metrics()
    assert metrics == {"logprob_mismatch/mean": 0.25, "logprob_mismatch/max": 0.5}


def test_statistics_of_nothing_are_left_out() -> None:
    mask = torch.zeros(1, 3).bool()
    _, statistics = policy_loss(torch.zeros(1, 3), torch.zeros(1, 3), mask, Normaliser.of([mask], "token_mean"))
    assert "ratio/mean" not in statistics.metrics()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(0, 2**6 - 1), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 5), max_size=5),
    aggregation=st.sampled_from(AGGREGATIONS),
    seed=st.integers(0, 100),
)
def test_micro_batches_add_up_to_the_big_batch(rows: list[int], cuts: list[int], aggregation: Any, seed: int) -> None:
    """However the step is cut: same loss, same gradients, same metrics."""
    mask = torch.tensor([[(row >> bit) & 1 for bit in range(6)] for row in rows]).bool()
    generator = torch.Generator().manual_seed(seed)

    def draw() -> torch.Tensor:
        return torch.randn(mask.shape, dtype=torch.float64, generator=generator)

    logprobs, old, reference, advantages, entropy = draw(), draw(), draw(), draw(), draw()
    bounds = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows))})
    pieces = [slice(start, end) for start, end in itertools.pairwise(bounds)]

    def run(slices: list[slice]) -> tuple[float, torch.Tensor, dict[str, float]]:
        leaf = logprobs.clone().requires_grad_()
        normaliser = Normaliser.of([mask[piece] for piece in slices], aggregation, length=6)
        total, statistics = 0.0, LossStatistics()
        for piece in slices:
            loss, part = policy_loss(
                leaf[piece], advantages[piece], mask[piece], normaliser,
                old_logprobs_BT=old[piece], reference_logprobs_BT=reference[piece], entropy_BT=entropy[piece],
                kl_coef=0.3, entropy_coef=0.1,
            )  # fmt: skip
            loss.backward()
            total += loss.item()
            statistics.add(part)
        assert leaf.grad is not None
        return total, leaf.grad, statistics.metrics()

    whole, parts = run([slice(0, len(rows))]), run(pieces)
    assert parts[0] == pytest.approx(whole[0], rel=1e-6, abs=1e-9)
    assert torch.allclose(parts[1], whole[1], rtol=1e-6, atol=1e-12)
    assert parts[2] == pytest.approx(whole[2], rel=1e-6, abs=1e-9)


def test_supervised_loss_is_the_mean_negative_log_likelihood() -> None:
    logprobs = torch.tensor([[math.nan, -1.0, -2.0, -3.0], [0.0, 0.0, -6.0, math.nan]])
    assert supervised_loss(logprobs, MASK, Normaliser.of([MASK], "token_mean")).item() == pytest.approx(3.0)
    assert supervised_loss(logprobs, MASK, Normaliser.of([MASK], "sequence_mean")).item() == pytest.approx(4.0)
