"""The mode that a model is trained in, and eval mode for a while.

In transformers' train mode a model may draw random numbers: dropout, a router's jitter, dropped layers. The engine
samples without them, so the trainer would compute another policy's log-probabilities. Eval mode draws nothing and has
the same gradients. Two things need train mode even so: gradient checkpointing, which a layer looks up in its own flag,
and code that comes with a checkpoint, some of which computes experts without gradients in eval mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.modeling_layers import GradientCheckpointingLayer

_KNOWN = ("torch.", "transformers.", "peft.", "toolrl_")
"""Packages whose modules give gradients in eval mode. A checkpoint's own code is in `transformers_modules`."""


def train_without_noise(model: Any) -> None:
    """Set each module to eval mode, except for those that need train mode. `start_check` finds what still draws."""
    model.eval()
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    for part in layers or model.modules():
        part.training = bool(getattr(part, "gradient_checkpointing", False))
    for part in model.modules():
        # In eval mode RWKV divides the weights of its later layers in place.
        if not _is_known(part) or hasattr(part, "layers_are_rescaled"):
            part.training = True


def _is_known(part: Any) -> bool:
    # FSDP makes a class of its own for each class that it shards, with that as a base.
    modules = (kind.__module__ for kind in type(part).__mro__)
    return next(name for name in modules if not name.startswith("torch.distributed.")).startswith(_KNOWN)


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Meanwhile all modules are in eval mode; afterwards each is in the mode that it was in."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
