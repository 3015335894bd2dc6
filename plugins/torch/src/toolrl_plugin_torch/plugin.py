"""Registers the trainer `torch` and its commands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolrl import Component, hookimpl

_PACKAGE = "toolrl_plugin_torch"


@hookimpl
def toolrl_trainers() -> Iterator[Component[Any]]:
    """The trainer `torch`."""
    yield Component(
        "torch",
        f"{_PACKAGE}.backend:TorchTrainers",
        summary="Policy gradients, PPO and fine-tuning in PyTorch.",
        options=f"{_PACKAGE}.options:TorchOptions",
        check=f"{_PACKAGE}.device:check",
    )


@hookimpl
def toolrl_commands() -> Iterator[Component[Any]]:
    """The commands `toolrl plan`, `toolrl sft` and `toolrl export`."""
    yield Component(
        "plan",
        f"{_PACKAGE}.commands.plan:Plan",
        summary="compute whether a run fits its GPUs, without loading a model",
    )
    yield Component(
        "sft",
        f"{_PACKAGE}.commands.sft:Sft",
        summary="fine-tune on demonstrations, or on the good episodes of a run",
    )
    yield Component(
        "export",
        f"{_PACKAGE}.commands.export:Export",
        summary="write a run's model as a folder for other programs",
    )
