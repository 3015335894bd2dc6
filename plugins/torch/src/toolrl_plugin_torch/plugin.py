"""Registers the trainer `torch`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolrl import Component, hookimpl


@hookimpl
def toolrl_trainers() -> Iterator[Component[Any]]:
    """The trainer `torch`."""
    yield Component(
        "torch",
        "toolrl_plugin_torch.backend:TorchTrainers",
        summary="Policy gradients, PPO and fine-tuning in PyTorch.",
        options="toolrl_plugin_torch.options:TorchOptions",
        check="toolrl_plugin_torch.device:check",
    )
