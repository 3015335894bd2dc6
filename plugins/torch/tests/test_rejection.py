"""What is left out of the loss because another policy sampled it, and the two policies that a ratio may be taken to."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl_plugin_torch.algorithm import RejectionConfig
from toolrl_plugin_torch.objective.importance import rejected_tokens

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


# The config.


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
