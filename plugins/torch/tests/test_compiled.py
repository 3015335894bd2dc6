"""Updates with compiled layers are those without, and lengths that vary compile nothing anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from toolrl_plugin_torch import base_trainer


def updated(tiny: Any, folder: Path, *, compiles: bool, share: bool, checkpointing: bool) -> list[Any]:
    """Metrics of each step, then weights, of three steps of other lengths."""
    torch._dynamo.reset()
    counters.clear()
    policy = tiny.policy(dtype="float64")
    policy.compile = compiles
    if checkpointing:
        policy.model.gradient_checkpointing_enable({"use_reentrant": False})
    trainer = tiny.trainer(folder, policy, {"preset": "grpo", "kl_coef": 0.1}, share_prefix=share)
    metrics = []
    for seed, prompt in enumerate((33, 41, 52)):
        metrics.append(trainer.update([tiny.group([0.0, 1.0, 1.0], seed, prompt=prompt, lengths=(9, 14, 6 + seed))]))
    return [*metrics, policy.model.state_dict()]


@pytest.mark.parametrize(
    ("share", "checkpointing"), [(True, False), (False, False), (True, True)], ids=["trees", "padded", "checkpointed"]
)
def test_an_update_with_compiled_layers(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: bool, checkpointing: bool
) -> None:
    monkeypatch.setattr(base_trainer, "BACKEND", "aot_eager")
    *plain, weights = updated(tiny, tmp_path, compiles=False, share=share, checkpointing=checkpointing)
    assert not counters["stats"]["unique_graphs"]
    *steps, found = updated(tiny, tmp_path, compiles=True, share=share, checkpointing=checkpointing)
    for one, other in zip(steps, plain, strict=True):
        assert one == pytest.approx(other, rel=1e-9, abs=1e-12)
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10)
    # With gradients, for the reference, and where checkpointing computes layers again.
    assert counters["stats"]["unique_graphs"] == 2 + checkpointing
