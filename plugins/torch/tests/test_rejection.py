"""What is left out of the loss because another policy sampled it, and the two policies that a ratio may be taken to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from toolrl_plugin_torch.algorithm import AlgorithmConfig, ImportanceConfig, RejectionConfig
from toolrl_plugin_torch.objective.importance import rejected_tokens
from toolrl_plugin_torch.objective.loss import Normaliser, policy_loss

MASK_BT = torch.tensor([[False, True, True, True], [False, True, True, False]])
SAMPLED_BT = torch.tensor([[9.0, -1.0, -1.0, -1.0], [9.0, -2.0, -2.0, 9.0]])
# Ratios 1, 4 and 1/4 in the first episode, whose product is 1; 1.5 and 1.5 in the second.
RATIOS_BT = torch.tensor([[7.0, 1.0, 4.0, 0.25], [7.0, 1.5, 1.5, 7.0]])
PROXIMAL_BT = SAMPLED_BT + RATIOS_BT.log()
ADVANTAGES_BT = torch.tensor([[1.0, 1.0, 1.0, -1.0], [-1.0, -1.0, -1.0, -1.0]])


def rejected(how: RejectionConfig) -> list[list[bool]]:
    found: list[list[bool]] = rejected_tokens(PROXIMAL_BT, SAMPLED_BT, ADVANTAGES_BT, MASK_BT, how).tolist()
    return found


@pytest.mark.parametrize(
    ("how", "first", "second"),
    [
        # Each token by itself.
        (RejectionConfig(level="token", low=0.5, high=2.0), [False, False, True, True], [False] * 4),
        (RejectionConfig(level="token", low=0.2, high=2.0), [False, False, True, False], [False] * 4),
        (RejectionConfig(level="token", low=0.5, high=5.0), [False, False, False, True], [False] * 4),
        (
            RejectionConfig(level="token", low=0.5, high=2.0, only_negative=True),
            [False, False, False, True],
            [False] * 4,
        ),
        # The product: 1 and 2.25.
        (RejectionConfig(level="sequence", low=0.5, high=2.0), [False] * 4, [False, True, True, False]),
        (RejectionConfig(level="sequence", low=0.5, high=2.3), [False] * 4, [False] * 4),
        # The geometric mean: 1 and 1.5.
        (RejectionConfig(level="mean", low=0.5, high=1.4), [False] * 4, [False, True, True, False]),
        (RejectionConfig(level="mean", low=0.5, high=2.0), [False] * 4, [False] * 4),
    ],
)
def test_what_lies_outside_of_the_interval_is_left_out(
    how: RejectionConfig, first: list[bool], second: list[bool]
) -> None:
    assert rejected(how) == [first, second]


def test_the_off_policy_sequence_mask_of_deepseek() -> None:
    """Episodes of negative advantage whose mean log-ratio of sampled to current lies above δ: 1.2 in the first here."""
    sampled_BT = torch.tensor([[-1.0, -1.0], [-1.0, -1.0], [-1.0, -1.0]])
    current_BT = torch.tensor([[-2.0, -2.4], [-2.0, -2.4], [-1.5, -1.7]])
    advantages_BT = torch.tensor([[-0.5, -0.5], [0.5, 0.5], [-0.5, -0.5]])
    how = RejectionConfig(level="mean", low=math.exp(-1.0), high=1e6, only_negative=True)
    mask_BT = torch.ones(3, 2, dtype=torch.bool)
    found = rejected_tokens(current_BT, sampled_BT, advantages_BT, mask_BT, how)
    assert found.tolist() == [[True, True], [False, False], [False, False]]


def loss_of(
    settings: AlgorithmConfig, current_BT: Any, old_BT: Any = PROXIMAL_BT
) -> tuple[float, Any, dict[str, float]]:
    """Loss, gradient and metrics."""
    logprobs_BT = current_BT.clone().requires_grad_()
    loss, statistics = policy_loss(
        logprobs_BT, ADVANTAGES_BT, MASK_BT, Normaliser("token_mean", 5, 2), settings, old_logprobs_BT=old_BT,
        rollout_logprobs_BT=SAMPLED_BT,
    )  # fmt: skip
    loss.backward()
    return loss.item(), logprobs_BT.grad, statistics.metrics()


def test_rejected_tokens_give_no_loss_and_no_gradient_and_count_in_the_mean() -> None:
    loss, gradient_BT, metrics = loss_of(
        AlgorithmConfig(rejection=RejectionConfig(level="token", low=0.5, high=2.0)), PROXIMAL_BT
    )
    # Ratio 1 everywhere: −A of the first token and of the two of the second episode, over all five tokens.
    assert loss == pytest.approx((-1.0 + 1.0 + 1.0) / 5)
    assert gradient_BT.tolist() == [
        [0.0, pytest.approx(-0.2), 0.0, 0.0],
        [0.0, pytest.approx(0.2), pytest.approx(0.2), 0.0],
    ]
    assert metrics["importance/rejected"] == pytest.approx(2 / 5)


def test_rejection_of_tokens_with_their_weights_is_icepop() -> None:
    both = AlgorithmConfig(
        importance=ImportanceConfig(level="token", mode="truncate", cap=5.0),
        rejection=RejectionConfig(level="token", low=0.5, high=5.0),
    )
    loss, _, metrics = loss_of(both, PROXIMAL_BT)
    # Weights 1 and 4, the third is rejected; 1.5 and 1.5 of negative advantage.
    assert loss == pytest.approx((-1.0 - 4.0 + 1.5 + 1.5) / 5)
    assert metrics["importance/rejected"] == pytest.approx(1 / 5)


def test_ratios_to_the_policy_that_sampled_are_clipped_around_it() -> None:
    """PPO without decoupling: the ratio holds all of what has changed since, and no weight is needed."""
    settings = AlgorithmConfig(old_logprobs="sampled")
    loss, gradient_BT, metrics = loss_of(settings, PROXIMAL_BT)
    # −min(r A, clip(r) A): 1 · 1, clip(4) · 1 = 1.2, clip(0.25) · −1 = −0.8, and 1.5 · −1 twice.
    assert loss == pytest.approx((-1.0 - 1.2 + 0.8 + 1.5 + 1.5) / 5)
    assert gradient_BT[0].tolist() == [0.0, pytest.approx(-0.2), 0.0, 0.0], "what was clipped has no gradient"
    assert gradient_BT[1].tolist() == [0.0, pytest.approx(0.3), pytest.approx(0.3), 0.0]
    assert metrics["ratio/max"] == pytest.approx(4.0)
    again, _, _ = loss_of(settings, PROXIMAL_BT, old_BT=None)
    assert again == pytest.approx(loss), "also on the first update"


def test_the_three_policies_of_decoupled_ppo() -> None:
    """The weight is old over behaviour; current over old is clipped (AReaL, arXiv 2505.24298, section 5.2)."""
    current_BT = PROXIMAL_BT + torch.tensor([[0.0, math.log(1.5), 0.0, 0.0], [0.0, 0.0, math.log(0.5), 0.0]])
    loss, _, _ = loss_of(
        AlgorithmConfig(importance=ImportanceConfig(level="token", mode="truncate", cap=10.0)), current_BT
    )
    # w · −min(r A, clip(r) A): 1 · −1.2; 4 · −1; 0.25 · 1; 1.5 · 1; and 1.5 · 0.8, as r is 0.5 and A negative.
    assert loss == pytest.approx((-1.2 - 4.0 + 0.25 + 1.5 + 1.5 * 0.8) / 5)


# The config.


@pytest.mark.parametrize("bad", [{"low": 1.5}, {"high": 0.5}, {"low": -1}, {"high": math.inf}])
def test_an_interval_holds_1(bad: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        AlgorithmConfig.model_validate({"rejection": bad})


@pytest.mark.parametrize("key", ["importance", "rejection"])
def test_what_would_have_no_effect_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=f"{key}: without effect beside `old_logprobs: sampled`"):
        AlgorithmConfig.model_validate({"old_logprobs": "sampled", key: {}})


def test_a_trainer_of_several_updates_recomputes_nothing_for_ratios_to_the_samples(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = [tiny.group((0.0, 1.0), seed) for seed in (0, 1)]
    passes: dict[str, int] = {}
    for old_logprobs in ("recomputed", "sampled"):
        trainer = tiny.trainer(tmp_path, None, {"old_logprobs": old_logprobs}, updates_per_step=2)
        passes[old_logprobs] = 0
        real = trainer._logprobs

        def counted(*arguments: Any, old_logprobs: str = old_logprobs, real: Any = real) -> Any:
            passes[old_logprobs] += 1
            return real(*arguments)

        monkeypatch.setattr(trainer, "_logprobs", counted)
        assert trainer.update(groups)["updates"] == 2.0
    assert passes == {"recomputed": 2, "sampled": 0}
