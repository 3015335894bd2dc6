"""The loss against values worked out by hand, and its independence of how a step is cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.protocols import LossTerms
from toolrl_plugin_torch.algorithm import AlgorithmConfig, ImportanceConfig, RejectionConfig
from toolrl_plugin_torch.objective.loss import (
    Normaliser,
    mismatch_statistics,
    policy_loss,
    supervised_loss,
)

PLAIN = AlgorithmConfig()
MASK = torch.tensor([[0, 1, 1, 1], [0, 0, 1, 0]]).bool()


def normaliser_of(mask: torch.Tensor, aggregation: Any, *, length: int = 1) -> Normaliser:
    return Normaliser.of(mask.sum(1).tolist(), aggregation, length=length)


def evaluated(
    logprobs: list[float],
    advantages: list[float],
    mask: list[bool],
    objective: AlgorithmConfig = PLAIN,
    *,
    aggregation: str = "token_mean",
    custom: Any = None,
    **given: list[float],
) -> tuple[float, list[float], dict[str, float]]:
    """Loss, gradient and metrics of one sequence. `given`: other log-probabilities, and entropies."""
    leaf, mask_BT = torch.tensor([logprobs], requires_grad=True), torch.tensor([mask])
    others = {f"{name}_BT": torch.tensor([values]) for name, values in given.items()}
    normaliser, advantages_BT = normaliser_of(mask_BT, aggregation), torch.tensor([advantages])
    loss, statistics = policy_loss(leaf, advantages_BT, mask_BT, normaliser, objective, custom=custom, **others)
    loss.backward()
    assert leaf.grad is not None
    return loss.item(), leaf.grad[0].tolist(), statistics.metrics()


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        ("token_mean", [[0, 1 / 4, 1 / 4, 1 / 4], [0, 0, 1 / 4, 0]]),
        ("sequence_mean", [[0, 1 / 6, 1 / 6, 1 / 6], [0, 0, 1 / 2, 0]]),
        ("sequence_sum", [[0, 1 / 2, 1 / 2, 1 / 2], [0, 0, 1 / 2, 0]]),
        ("constant", [[0, 1 / 20, 1 / 20, 1 / 20], [0, 0, 1 / 20, 0]]),
    ],
)
def test_weights(aggregation: Any, expected: list[list[float]]) -> None:
    weights = normaliser_of(MASK, aggregation, length=10).weights(MASK)
    assert weights.flatten().tolist() == pytest.approx([value for row in expected for value in row])


@pytest.mark.parametrize(
    # The clipped term has no gradient. ∂ k3 / ∂ logprob = 1 − exp(1); corrected it is the weight times
    # logprob − reference, 1.5 · −1.
    ("correction", "kl", "gradient"),
    [(False, math.e - 2, 1 - math.e), (True, 1.5 * (math.e - 2), -1.5)],
)
def test_a_whole_loss_by_hand(correction: bool, kl: float, gradient: float) -> None:
    """One token, ratio 1.5 clipped to 1.2, advantage 2, k3 of e − 2, entropy 0.7."""
    loss, found, metrics = evaluated(
        [0.0, -1.0],
        [0.0, 2.0],
        [False, True],
        AlgorithmConfig(kl_coef=0.1, kl_correction=correction, entropy_coef=0.01),
        old_logprobs=[0.0, -1.0 - math.log(1.5)],
        reference_logprobs=[0.0, 0.0],
        entropy=[0.0, 0.7],
    )
    assert loss == pytest.approx(-2.4 + 0.1 * kl - 0.01 * 0.7)
    assert found == pytest.approx([0.0, 0.1 * gradient])
    assert metrics["clip/high"] == 1.0
    assert metrics["clip/low"] == 0.0
    assert metrics["kl"] == pytest.approx(1.5 * (math.e - 2))
    assert metrics["ratio/mean"] == metrics["ratio/max"] == pytest.approx(1.5)
    assert metrics["approx_kl"] == pytest.approx(0.5 - math.log(1.5))
    assert metrics["loss/policy"] == pytest.approx(-2.4)
    assert metrics["loss/total"] == pytest.approx(loss)


@pytest.mark.parametrize(("ratio", "mean", "greatest"), [("token", (4 + 1 + 0.25) / 3, 4.0), ("sequence", 1.0, 1.0)])
def test_the_ratio_that_is_measured_is_the_one_that_is_clipped(ratio: Any, mean: float, greatest: float) -> None:
    """Tokens with ratios 4, 1 and 1/4: their geometric mean, the sequence's ratio, is 1, so nothing is clipped."""
    far = math.log(4.0)
    _, _, metrics = evaluated(
        [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0], [True, True, True], AlgorithmConfig(ratio=ratio),
        old_logprobs=[-1.0 - far, -1.0, -1.0 + far],
    )  # fmt: skip
    assert metrics["ratio/mean"] == pytest.approx(mean)
    assert metrics["ratio/max"] == pytest.approx(greatest)
    assert metrics["clip/high"] == pytest.approx(1 / 3 if ratio == "token" else 0.0)
    assert metrics["approx_kl"] == pytest.approx((3 - far + -0.75 + far) / 3), "of the tokens, whatever is clipped"


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"ratio": "sequence"},
        {"surrogate": "cispo"},
        {"importance": ImportanceConfig()},
        {"importance": ImportanceConfig(level="sequence", mode="reject")},
        *({"rejection": RejectionConfig(level=level)} for level in ("token", "sequence", "mean")),
        {"kl_estimator": "k1"},
    ],
    ids=str,
)
def test_what_is_outside_of_the_mask_cannot_reach_the_loss(parts: dict[str, Any]) -> None:
    objective = AlgorithmConfig(**parts, kl_coef=1.0, entropy_coef=1.0)
    logprobs = torch.tensor([[math.nan, -1.0, -math.inf]], requires_grad=True)
    poison = torch.tensor([[math.inf, -1.0, math.nan]])
    mask = torch.tensor([[False, True, False]])
    loss, statistics = policy_loss(
        logprobs, poison, mask, normaliser_of(mask, "sequence_mean"), objective,
        old_logprobs_BT=poison, rollout_logprobs_BT=poison, reference_logprobs_BT=poison, entropy_BT=poison,
    )  # fmt: skip
    loss.backward()
    assert math.isfinite(loss.item())
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert all(math.isfinite(value) for value in statistics.metrics().values())
    assert mismatch_statistics(logprobs, poison, mask).metrics()["logprob_mismatch/max"] == 0.0


class Squared:
    """A plugin's loss: the squared distance of the advantage to the log-ratio."""

    def token_losses(self, terms: LossTerms) -> Any:
        return (terms.logprobs_BT - terms.old_logprobs_BT - terms.advantages_BT).square()


class Flat:
    """Loses the shape."""

    def token_losses(self, terms: LossTerms) -> Any:
        return terms.logprobs_BT.sum()


def test_a_plugins_loss_stands_for_the_surrogate() -> None:
    """Token losses (0.5 − 2)² and (0 + 1)²; their mean is 1.625, their gradients 2 · (…) / 2."""
    given: Any = ([0.0, -1.0, -2.0], [9.0, 2.0, -1.0], [False, True, True])
    loss, gradient, metrics = evaluated(*given, custom=Squared(), old_logprobs=[0.0, -1.5, -2.0])
    assert loss == pytest.approx(1.625)
    assert gradient == pytest.approx([0.0, -1.5, 1.0])
    assert "clip/low" not in metrics
    with pytest.raises(ValueError, match=r"\(1, 3\)"):
        evaluated(*given, custom=Flat())


LOGITS, ROLLOUT, OLD, REFERENCE = (
    torch.tensor(values, dtype=torch.float64)
    for values in ([0.3, -0.5, 1.1, 0.2], [1.2, 0.4, -0.9, 0.1], [0.8, -0.2, 0.3, 0.0], [-0.7, 0.9, 0.6, -1.3])
)
"""Of a policy over four tokens, of the one that sampled, of the one before the step, and of the reference."""


def over_four_tokens(objective: AlgorithmConfig, *, first: bool) -> tuple[torch.Tensor, dict[str, float]]:
    """The expectation, over the policy that sampled, of the gradient by the logits and of the metrics. `first`: the
    step's first update, to which no old log-probabilities are given."""
    logits = LOGITS.clone().requires_grad_()
    policy, rollout, old, reference = (it.log_softmax(0) for it in (logits, ROLLOUT, OLD, REFERENCE))
    loss, metrics, mask = torch.zeros(()), dict[str, float](), torch.tensor([[True]])
    for token in range(4):
        part, statistics = policy_loss(
            policy[token].view(1, 1),
            torch.zeros(1, 1),
            mask,
            normaliser_of(mask, "token_mean"),
            objective,
            old_logprobs_BT=None if first else old[token].view(1, 1),
            rollout_logprobs_BT=rollout[token].view(1, 1),
            reference_logprobs_BT=reference[token].view(1, 1),
        )
        loss = loss + rollout[token].exp() * part
        for name, value in statistics.metrics().items():
            metrics[name] = metrics.get(name, 0.0) + float(rollout[token].exp()) * value
    return torch.autograd.grad(loss, logits)[0], metrics


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("old_logprobs", ["recomputed", "sampled"])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_expected_kl_and_its_gradient_are_exact_whoever_sampled(
    estimator: Any, old_logprobs: Any, first: bool
) -> None:
    logits = LOGITS.clone().requires_grad_()
    policy = logits.log_softmax(0)
    exact = (policy.exp() * (policy - REFERENCE.log_softmax(0))).sum()
    objective = AlgorithmConfig(kl_coef=1.0, kl_estimator=estimator, old_logprobs=old_logprobs)
    gradient, metrics = over_four_tokens(objective, first=first)
    assert torch.allclose(gradient, torch.autograd.grad(exact, logits)[0], rtol=1e-12)
    if estimator != "k2":  # Its value is biased by what it is.
        assert metrics["kl"] == pytest.approx(exact.item(), rel=1e-12)
        assert metrics["loss/total"] == pytest.approx(exact.item(), rel=1e-12)


def objective_of(**settings: Any) -> AlgorithmConfig:
    """Also those that a config may not have together."""
    return AlgorithmConfig().model_copy(update=settings)


FAR_OFF = st.sampled_from([0.0, -1e-6, -1.0, -19.0, -88.0, -89.0, -1e4, -1e20, -3.4e38])


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.tuples(*[FAR_OFF] * 4, st.sampled_from([-2.0, 0.0, 2.0])), min_size=1, max_size=3),
    objective=st.builds(
        objective_of,
        surrogate=st.sampled_from(["clip", "cispo"]),
        ratio=st.sampled_from(["token", "sequence"]),
        importance=st.none() | st.builds(ImportanceConfig, level=st.sampled_from(["token", "sequence", "mean"])),
        rejection=st.none() | st.builds(RejectionConfig, level=st.sampled_from(["token", "sequence", "mean"])),
        old_logprobs=st.sampled_from(["recomputed", "sampled"]),
        kl_coef=st.just(1.0),
        kl_estimator=st.sampled_from(["k1", "k2", "k3"]),
        kl_correction=st.booleans(),
    ),
)
def test_log_probabilities_however_far_apart_give_finite_numbers(values: list[Any], objective: AlgorithmConfig) -> None:
    logprobs, old, rollout, reference, advantages = torch.tensor(values).T[:, None]
    logprobs.requires_grad_()
    mask = torch.ones_like(advantages).bool()
    loss, statistics = policy_loss(
        logprobs, advantages, mask, normaliser_of(mask, "token_mean"), objective,
        old_logprobs_BT=old, rollout_logprobs_BT=rollout, reference_logprobs_BT=reference,
    )  # fmt: skip
    loss.backward()
    assert loss.isfinite()
    assert logprobs.grad is not None
    assert logprobs.grad.isfinite().all()
    assert all(math.isfinite(value) for value in statistics.metrics().values())


def test_supervised_loss_is_the_mean_negative_log_likelihood() -> None:
    logprobs = torch.tensor([[math.nan, -1.0, -2.0, -3.0], [0.0, 0.0, -6.0, math.nan]])
    assert supervised_loss(logprobs, MASK, normaliser_of(MASK, "token_mean")).item() == pytest.approx(3.0)
    assert supervised_loss(logprobs, MASK, normaliser_of(MASK, "sequence_mean")).item() == pytest.approx(4.0)
