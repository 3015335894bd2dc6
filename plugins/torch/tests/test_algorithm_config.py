"""The section `algorithm`: presets, and settings that mean nothing together."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from toolrl_plugin_torch.algorithm import PRESETS, AlgorithmConfig


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_fills_what_is_not_said(preset: Any) -> None:
    made = AlgorithmConfig(preset=preset)
    assert {name: getattr(made, name) for name in PRESETS[preset]} == PRESETS[preset]
    changed = AlgorithmConfig(preset=preset, loss_aggregation="constant", clip_high=0.5)
    assert (changed.loss_aggregation, changed.clip_high) == ("constant", 0.5)


def test_every_preset_of_the_table_can_be_named() -> None:
    assert set(AlgorithmConfig.model_json_schema()["properties"]["preset"]["enum"]) == set(PRESETS)
    assert AlgorithmConfig().model_dump() == AlgorithmConfig(preset="grpo").model_dump()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("more", [{}, {"advantage": "mine"}, {"policy_loss": {"use": "mine"}}], ids=str)
def test_a_resolved_config_can_be_read_again(preset: Any, more: dict[str, Any]) -> None:
    made = AlgorithmConfig(preset=preset, **more)
    assert AlgorithmConfig.model_validate(made.model_dump()) == made


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"group_size": 1}, "the baseline group_mean needs 2"),
        ({"preset": "rloo", "group_size": 1}, "the baseline leave_one_out needs 2"),
        ({"kl_coef": 0.1, "kl_estimator": "k1", "kl_correction": False}, "take k2 or k3"),
        ({"kl_in": "reward", "kl_coef": 0.1, "credit": "turn"}, "scale: std divides what turns are given by its own"),
        ({"baseline": "batch_mean"}, "take batch_std, advantage_std or none"),
        ({"preset": "dapo", "group_size": 1, "advantage": "mine"}, "drop_flat_groups: the rewards of a group of one"),
        ({"critic": {}}, "unless `baseline` is `critic`"),
        ({"preset": "ppo", "credit": "episode"}, "set `credit: turn`"),
        ({"preset": "ppo", "scale": "std"}, "advantage_std or none"),
        ({"advantage": "mine", "overlong": {"tokens": 9, "buffer": 2}}, "sees the rewards without it"),
    ],
)
def test_what_means_nothing_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        AlgorithmConfig(**settings)
