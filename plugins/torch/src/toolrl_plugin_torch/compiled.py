"""Decoder layers compiled by `torch.compile` while a trainer computes: `model.compile`.

All layers of a model have the same code, so one compiled layer serves all of them. Sizes are dynamic: micro-batches of
other lengths need no other compilation. Attention over trees is one operator in it (`prefixes/attention.py`).

An engine may share the model. Its passes have other shapes and no gradients, so they stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

BACKEND = "inductor"


class CompiledLayers:
    """The layers of some models, compiled when they are called first."""

    def __init__(self, models: Sequence[Any]) -> None:
        from toolrl_plugin_torch.sharding.fsdp import blocks  # Imports FSDP, which others do without.

        self._calls = [
            (layer, torch.compile(layer._call_impl, backend=BACKEND, dynamic=True))
            for model in models
            for layer in blocks(model)
        ]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Meanwhile the models call their compiled layers. Covers the backward pass too, as gradient checkpointing
        computes layers again."""
        try:
            for layer, call in self._calls:
                layer._compiled_call_impl = call
            yield
        finally:
            for layer, _ in self._calls:
                layer._compiled_call_impl = None
