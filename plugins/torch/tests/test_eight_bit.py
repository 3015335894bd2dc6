"""AdamW with averages in 8 bits: it follows AdamW, resumes bit for bit, takes the planned bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl_plugin_torch.optimizer import PolicyOptimizer
from toolrl_plugin_torch.options import ModelConfig, OptimizerConfig
from toolrl_plugin_torch.plan.sizes import PolicySizes
from toolrl_plugin_torch.policy import model_settings

pytest.importorskip("bitsandbytes")


def _made(optimizer: str, dtype: str = "float32", **settings: Any) -> tuple[Any, PolicyOptimizer]:
    torch.manual_seed(0)
    layers = (torch.nn.Linear(32, 300), torch.nn.Tanh(), torch.nn.Linear(300, 32), torch.nn.Linear(32, 1))
    model = torch.nn.Sequential(*layers).to(getattr(torch, dtype))
    config = OptimizerConfig(learning_rate=0.002, optimizer=optimizer, **settings)
    return model, PolicyOptimizer(model.named_parameters(), config)


def _learn(model: Any, optimizer: PolicyOptimizer, steps: range) -> float:
    """Regression on a fixed function; the last step's loss."""
    loss = torch.zeros(())
    for step in steps:
        inputs = torch.randn(64, 32, generator=torch.Generator().manual_seed(step))
        goal = inputs[:, :4].sum(dim=1, keepdim=True).tanh()
        loss = (model(inputs.to(model[0].weight.dtype)).float() - goal).square().mean()
        loss.backward()
        optimizer.clip()
        optimizer.step(0.002)
    return loss.item()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_learns_as_adamw_does(dtype: str) -> None:
    losses, weights = {}, {}
    for name in ("adamw", "adamw_8bit"):
        model, optimizer = _made(name, dtype)
        first = model[0].weight.detach().clone()
        before = _learn(model, optimizer, range(1))
        losses[name] = _learn(model, optimizer, range(1, 200))
        weights[name] = (model[0].weight.detach() - first).float().flatten()
    assert losses["adamw_8bit"] < 0.5 * before
    assert losses["adamw_8bit"] == pytest.approx(losses["adamw"], rel=0.05)
    # It is another path, of nearly the same direction.
    assert not torch.equal(*weights.values())
    assert torch.cosine_similarity(*weights.values(), dim=0) > 0.95


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_goes_on_from_a_checkpoint_bit_for_bit(dtype: str) -> None:
    model, optimizer = _made("adamw_8bit", dtype)
    _learn(model, optimizer, range(5))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    _learn(model, optimizer, range(5, 9))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other_model, other = _made("adamw_8bit", dtype)
    other_model.load_state_dict(saved["model"])
    other.load_state_dict(saved["optimizer"])
    _learn(other_model, other, range(5, 9))
    ours, theirs = optimizer.tensors(), other.tensors()
    assert ours.keys() == theirs.keys()
    assert ours["exp_avg/0.weight"].dtype == torch.uint8
    assert all(value.equal(theirs[name]) for name, value in ours.items())


def test_planned_bytes_are_those_of_the_optimizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        '{"model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 1000}'
    )
    config = ModelConfig(path=str(tmp_path), dtype="bfloat16")
    planned = PolicySizes(config, config.path, torch.device("cpu"), "adamw_8bit")
    loader, found = model_settings(config, config.path)
    model = loader.from_config(found, dtype=torch.bfloat16)
    optimizer = PolicyOptimizer(model.named_parameters(), OptimizerConfig(optimizer="adamw_8bit"))
    assert planned.optimizer == sum(tensor.nbytes for tensor in optimizer.tensors().values())
    # Masters, two codes and two scales a parameter; norms keep 32 bits.
    assert planned.optimizer / planned.parameters == pytest.approx(4 + 2 + 8 / 256, rel=0.01)
