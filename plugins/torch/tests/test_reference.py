"""The KL divergence's reference: measured without changing training, moved as TRL moves it, kept in checkpoints."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.errors import CheckpointError
from toolrl_plugin_torch.loop.batches import FixedRows
from toolrl_plugin_torch.loop.saver import Saver
from toolrl_plugin_torch.trainer import PolicyTrainer

REWARDS = (0.0, 1.0, 1.0, 0.0)
OPTIONS = {"updates_per_step": 2, "epochs_per_step": 2, "tokens_per_microbatch": 60}


def sync_target_model(model: Any, target_model: Any, alpha: float) -> None:
    """TRL 1.16, `SyncRefModelCallback._sync_target_model` of trl/trainer/callbacks.py."""
    for target_param, copy_param in zip(target_model.parameters(), model.parameters(), strict=True):
        target_param.data.mul_(1.0 - alpha).add_(copy_param.data, alpha=alpha)


def test_it_moves_as_in_trl(tiny: Any, tmp_path: Path) -> None:
    algorithm = {"preset": "grpo", "kl_coef": 0.1, "reference": {"sync_every": 2}}
    trainer = tiny.trainer(tmp_path, tiny.policy(tiny.model("qwen3", dtype="float64")), algorithm, **OPTIONS)
    theirs = copy.deepcopy(trainer.policy.model)
    for step in range(1, 5):
        trainer.update([tiny.group(REWARDS, step)])
        if step % 2 == 0:
            sync_target_model(trainer.policy.model, theirs, 1.0)
        for ours, expected in zip(trainer.reference.parameters(), theirs.parameters(), strict=True):
            assert torch.allclose(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_after_each_step_it_is_the_policy(tiny: Any, tmp_path: Path, lora: dict[str, int] | None) -> None:
    """So that at a step's start there is no divergence; the model under an adapter isn't touched."""
    folder = tiny.save(tmp_path / "model")
    algorithm = {"preset": "grpo", "kl_coef": 0.1, "reference": {"sync_every": 1}}
    trainer = tiny.trainer(tmp_path, tiny.load(folder, lora), algorithm, learning_rate=1e-2)
    before = {name: it.clone() for name, it in trainer.policy.model.named_parameters() if not it.requires_grad}
    for seed in range(3):
        assert trainer.update([tiny.group(REWARDS, seed)])["kl"] < 1e-12
        assert tiny.logits(trainer.reference).equal(tiny.logits(trainer.policy.model))
    assert bool(before) == bool(lora)
    after = dict(trainer.policy.model.named_parameters())
    assert all(value.equal(after[name]) for name, value in before.items())


def test_measuring_changes_no_bit(tiny: Any, tmp_path: Path) -> None:
    plain, measured = (
        tiny.trainer(tmp_path, None, {"preset": "grpo", **more}, **OPTIONS) for more in ({}, {"reference": {}})
    )
    for seed in range(3):
        step = [tiny.group(REWARDS, seed), tiny.group((1.0, 1.0), 9)]
        wanted, found = plain.update(step), measured.update(step)
        assert found.pop("kl") > 0
        assert found == wanted
    pairs = zip(plain.policy.model.parameters(), measured.policy.model.parameters(), strict=True)
    assert all(one.equal(other) for one, other in pairs)


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_resumed_run_goes_on_bit_for_bit(tiny: Any, tmp_path: Path, lora: dict[str, int] | None) -> None:
    """Though the reference moved before the checkpoint; and a config that keeps none is told."""
    folder = tiny.save(tmp_path / "model")
    follows = {"preset": "grpo", "kl_coef": 0.1, "reference": {"sync_every": 2}}

    def make(algorithm: dict[str, Any]) -> tuple[PolicyTrainer, Saver]:
        trainer = tiny.trainer(tmp_path, tiny.load(folder, lora), algorithm, learning_rate=1e-2, **OPTIONS)
        return trainer, Saver(trainer, tmp_path / "checkpoints", 2, FixedRows(1), {})

    def steps(trainer: PolicyTrainer, start: int, end: int) -> list[dict[str, float]]:
        return [trainer.update([tiny.group(REWARDS, seed)]) for seed in range(start, end)]

    whole, saver = make(follows)
    steps(whole, 0, 3)
    saver.save()
    resumed, other = make(follows)
    assert other.restore() == 3
    assert steps(resumed, 3, 5) == steps(whole, 3, 5)
    for one, two in ((whole.policy.model, resumed.policy.model), (whole.reference, resumed.reference)):
        assert all(first.equal(second) for first, second in zip(one.parameters(), two.parameters(), strict=True))
    with pytest.raises(CheckpointError, match="holds .'reference'. besides the policy") as caught:
        make({"preset": "grpo", "kl_coef": 0.1})[1].restore()
    assert "algorithm.reference.sync_every" in str(caught.value.hint)
