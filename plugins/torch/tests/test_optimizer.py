"""Schedules by hand, AdamW against torch's own, clipping, master weights, and what stops a run."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import CheckpointError, RunStoppedError
from toolrl_plugin_torch import optimizer as module
from toolrl_plugin_torch.optimizer import PolicyOptimizer, learning_rate
from toolrl_plugin_torch.options import OptimizerConfig


def _config(**settings: Any) -> OptimizerConfig:
    return OptimizerConfig(**{"learning_rate": 0.1, **settings})


def _rates(total: int, **settings: Any) -> list[float]:
    return [learning_rate(step, _config(**settings), total) for step in range(total)]


@pytest.mark.parametrize(
    ("total", "settings", "rates"),
    [
        (3, {}, [0.1, 0.1, 0.1]),
        (5, {"warmup_steps": 4}, [0.025, 0.05, 0.075, 0.1, 0.1]),
        # Below 1 it is a share of the steps.
        (5, {"warmup_steps": 0.4}, [0.05, 0.1, 0.1, 0.1, 0.1]),
        (3, {"warmup_steps": 0.01}, [0.1, 0.1, 0.1]),
        (5, {"schedule": "linear"}, [0.1, 0.08, 0.06, 0.04, 0.02]),
        (3, {"schedule": "linear", "warmup_steps": 1, "min_rate": 0.5}, [0.1, 0.1, 0.075]),
        (2, {"schedule": "cosine", "min_rate": 0.2}, [0.1, 0.06]),
        (1, {"schedule": "cosine"}, [0.1]),
    ],
    ids=str,
)
def test_schedules(total: int, settings: dict[str, Any], rates: list[float]) -> None:
    assert _rates(total, **settings) == pytest.approx(rates)


@pytest.mark.parametrize("total", [1, 2, 7, 30])
@pytest.mark.parametrize("warmup", [0, 1, 4])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_after_the_warmup_rates_are_those_of_transformers(schedule: str, warmup: int, total: int) -> None:
    """The last step has a rate, so its rollout isn't wasted."""
    make = getattr(transformers, f"get_{schedule}_schedule_with_warmup")
    theirs = make(torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1), warmup, total)
    rates = _rates(total, schedule=schedule, warmup_steps=warmup)
    assert all(rate > 0 for rate in rates)
    for step, rate in enumerate(rates):
        if step >= warmup:
            assert rate == pytest.approx(theirs.get_last_lr()[0])
        theirs.optimizer.step()
        theirs.step()


def _model(dtype: str = "float32") -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 1))
    return model.to(getattr(torch, dtype))


def _backward(model: Any, seed: int) -> None:
    inputs = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed))
    model(inputs.to(next(model.parameters()).dtype)).square().mean().backward()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("bucket", [64, 2**28])
def test_equals_torchs_adamw_without_decay_on_vectors(dtype: str, bucket: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, also where each row is updated by itself; in bfloat16 that of the rounded float32 weights."""
    monkeypatch.setattr(module, "BUCKET", bucket)
    ours, masters = _model(dtype), _model(dtype).float()
    theirs = masters if dtype == "float32" else copy.deepcopy(masters).bfloat16()
    optimizer = PolicyOptimizer(ours.named_parameters(), _config(weight_decay=0.5, max_grad_norm=0.1))
    groups = [
        {"params": [p for p in masters.parameters() if p.ndim >= 2], "weight_decay": 0.5},
        {"params": [p for p in masters.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    reference = torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95), eps=1e-8, fused=True)
    for step in range(4):
        _backward(ours, step)
        norm = optimizer.clip()
        optimizer.step(rate := 0.1 / (step + 1))
        _backward(theirs, step)
        for master, parameter in zip(masters.parameters(), theirs.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        assert norm == float(torch.nn.utils.clip_grad_norm_(masters.parameters(), 0.1))
        for group in reference.param_groups:
            group["lr"] = rate
        reference.step()
        theirs.zero_grad()
        theirs.load_state_dict(masters.state_dict())
        assert all(p.grad is None for p in ours.parameters())
        assert all(one.equal(two) for one, two in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_micro_batches_are_summed_in_float32() -> None:
    weight = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = PolicyOptimizer([("weight", weight)], _config(max_grad_norm=1e9))
    for _ in range(1000):
        (weight * 1.0).sum().backward()
        assert weight.grad is None
    # In bfloat16 the sum of ones stops at 256.
    assert optimizer.clip() == 1000.0


def test_the_state_of_another_model_is_refused() -> None:
    state = PolicyOptimizer(_model().named_parameters(), _config()).state_dict()
    other = PolicyOptimizer(torch.nn.Linear(2, 2).named_parameters(), _config())
    with pytest.raises(CheckpointError, match=r"6 saved, 2 in the model; 0\.bias"):
        other.load_state_dict(state)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_gradient_that_is_not_finite_stops_the_run(bad: float) -> None:
    model = _model()
    before = [p.clone() for p in model.parameters()]
    optimizer = PolicyOptimizer(model.named_parameters(), _config())
    _backward(model, 0)
    model[2].weight.grad[0, 3] = bad
    with pytest.raises(RunStoppedError, match=r"in 2\.weight\)\n.*No weight was changed"):
        optimizer.clip()
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
