"""Bytes that a model's passes take beside weights and summed gradients, counted on the meta device.

The trainer's own functions (layers, head, optimizer hooks) run on tensors without data, and a dispatch mode counts the
memory of those that are alive. Kernels are taken to need no workspace; attention to keep what FlashAttention keeps.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface

from toolrl_plugin_torch.logprob import selected_logprobs
from toolrl_plugin_torch.modes import train_without_noise
from toolrl_plugin_torch.prefixes.tree_attention import without_adapter

_META = torch.device("meta")


@dataclass(frozen=True, slots=True)
class PassBytes:
    """Beside weights, and beside gradients that are summed over micro-batches."""

    saved: int
    """Alive when the forward pass of the layers has ended: what the backward pass needs."""
    peak: int
    """Most at once in a forward and a backward pass, the head's among them."""


def pass_bytes(
    model: Any, tokens: int, *, checkpointing: bool, shares: bool, entropy: bool, clear: Callable[[], None]
) -> PassBytes:
    """Of a micro-batch of so many tokens, all of them trained, through a model on the meta device. `shares`: the update
    computes common beginnings once, by attention that copies no keys. `clear` drops the gradients' sums.

    Raises what a model raises that can't be computed there, or whose attention can't be exchanged.
    """
    inner = without_adapter(model)
    if not getattr(inner, "_supports_attention_backend", False):
        raise NotImplementedError("its attention can't be exchanged")
    _set_checkpointing(inner, checkpointing)
    head = inner.get_output_embeddings()
    if type(head) is not torch.nn.Linear or inner.base_model is inner:
        raise NotImplementedError("its head can't be taken apart")
    ids = torch.zeros((1, tokens), dtype=torch.int64, device=_META)

    def hidden() -> torch.Tensor:
        states: torch.Tensor = inner.base_model(input_ids=ids, position_ids=ids, use_cache=False)[0]
        return states[0]

    def logprobs(hidden_NH: torch.Tensor) -> torch.Tensor:
        found, entropies = selected_logprobs(hidden_NH, head.weight, head.bias, ids[0], entropy=entropy)
        return found.sum() + entropies.sum() if entropy else found.sum()

    with _attention(inner, shares), _LiveBytes([*model.parameters(), *model.buffers(), ids]) as live:
        # The second of two micro-batches: the first leaves the sums of gradients.
        logprobs(hidden()).backward()
        live.peak = before = live.bytes
        states = hidden()
        saved = live.bytes - before
        logprobs(states).backward()
        del states
        most = live.peak - before
    clear()
    return PassBytes(saved, most)


class _LiveBytes(TorchDispatchMode):  # type: ignore[misc]
    """Counts the memory of tensors that operations make, until nothing holds it any more."""

    def __init__(self, others: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in others}

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return made

    def _add(self, storage: Any) -> None:
        key = storage._cdata
        if key not in self._known:
            self._known.add(key)
            self.bytes += storage.nbytes()
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self._forget, key, storage.nbytes())

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


def _set_checkpointing(inner: Any, wanted: bool) -> None:
    if wanted:
        enable = getattr(inner, "activation_checkpointing_enable", inner.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    else:
        getattr(inner, "activation_checkpointing_disable", inner.gradient_checkpointing_disable)()
    train_without_noise(inner)


class _Flash(torch.autograd.Function):  # type: ignore[misc]
    """Takes and keeps the memory that FlashAttention does."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


def _attend(copies: bool, module: Any, *inputs: torch.Tensor | None, **_: Any) -> tuple[torch.Tensor, None]:
    query, key, value = (tensor.transpose(1, 2) for tensor in inputs[:3] if tensor is not None)
    if copies:
        more = query.shape[2] // key.shape[2]
        key, value = (tensor.repeat_interleave(more, dim=2) for tensor in (key, value))
    return _Flash.apply(query, key, value), None


_NAMES = {True: "toolrl_plan", False: "toolrl_plan_with_copies"}
"""Of the attention that copies no keys, and of the one that does; transformers makes no mask for either."""
for _shares, _name in _NAMES.items():
    AttentionInterface.register(_name, partial(_attend, not _shares))


@contextmanager
def _attention(inner: Any, shares: bool) -> Iterator[None]:
    config = inner.config.get_text_config()
    before, config._attn_implementation = config._attn_implementation, _NAMES[shares]
    try:
        yield
    finally:
        config._attn_implementation = before
