"""What a model does between its last hidden states and its logits, found out by trying.

One forward pass over a few tokens, with a hook on the model's output embeddings that makes their output so large that a
soft cap shows: the logits that the model returns then are compared with what each candidate makes of the hook's output.
Candidates are a scale and a soft cap that the model's config names. Hidden states count as the head's input only where
the model without its head returns exactly those.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from toolrl_plugin_torch.modes import evaluating

_AMPLITUDE = 60.0
"""What the greatest raw logit of the probe is brought to; twice the soft caps in use."""
_PROBE_TOKENS = 6


@dataclass(frozen=True, slots=True)
class HeadTransform:
    """logits = cap(scale · raw), with cap(x) = softcap · tanh(x / softcap), or cap(x) = x."""

    scale: float = 1.0
    softcap: float | None = None

    def apply_(self, raw: torch.Tensor) -> torch.Tensor:
        """In place."""
        if self.scale != 1.0:
            raw.mul_(self.scale)
        if self.softcap is not None:
            raw.div_(self.softcap).tanh_().mul_(self.softcap)
        return raw

    def backward_(self, grad: torch.Tensor, logits: torch.Tensor | None) -> torch.Tensor:
        """The gradient of the raw logits, in place, from that of the logits, which a soft cap needs to be given."""
        if self.softcap is not None:
            assert logits is not None
            grad.addcmul_(grad, logits.div(self.softcap).square_(), value=-1.0)
        if self.scale != 1.0:
            grad.mul_(self.scale)
        return grad


_BLOCK = 1024
"""Rows of a head's weight that a CPU converts at once: few enough to stay in its cache."""


def wide_linear(
    hidden_NH: torch.Tensor, weight_VH: torch.Tensor, bias_V: torch.Tensor | None, dtype: torch.dtype
) -> torch.Tensor:
    """hidden · weightᵀ + bias `[N, V]`, computed and returned in `dtype`, without a copy of the whole weight: logits
    rounded to 16 bits alone move a log-probability by 0.01 to 0.02."""
    if hidden_NH.dtype == dtype:
        return torch.nn.functional.linear(hidden_NH, weight_VH, bias_V)
    if hidden_NH.device.type != "cpu":
        logits_NV = torch.mm(hidden_NH, weight_VH.t(), out_dtype=dtype)
    else:
        logits_NV = hidden_NH.new_empty((len(hidden_NH), len(weight_VH)), dtype=dtype)
        wide_NH = hidden_NH.to(dtype)
        for out, weight in zip(logits_NV.split(_BLOCK, dim=1), weight_VH.split(_BLOCK), strict=True):
            torch.mm(wide_NH, weight.to(dtype).t(), out=out)
    return logits_NV if bias_V is None else logits_NV.add_(bias_V)


HeadParts = tuple[Any, torch.nn.Linear, HeadTransform]
"""The model without its head, the head, and what follows it."""


def probe_head(model: Any) -> HeadParts | str:
    """The parts that together give the model's logits, or the reason why it can't be taken apart."""
    head = model.get_output_embeddings()
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    base = inner.base_model
    if head is None:
        return "it names no output embeddings"
    if type(head) is not torch.nn.Linear:
        return f"its head is a {type(head).__name__}, not a plain linear layer"
    if base is inner:
        return "it has no part without the head"
    with evaluating(model), torch.no_grad():
        return _probe(model, base, head)


def _probe(model: Any, base: Any, head: torch.nn.Linear) -> HeadParts | str:
    vocabulary = model.get_input_embeddings().weight.shape[0]
    device = head.weight.device
    input_ids = (torch.arange(1, _PROBE_TOKENS + 1, device=device) % vocabulary)[None]
    inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "use_cache": False}
    seen: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def amplify(module: Any, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        large = output * (_AMPLITUDE / output.abs().max().clamp(min=1e-6))
        seen.append((args[0], output, large))
        return large

    handle = head.register_forward_hook(amplify)
    try:
        logits = model(**inputs).logits
    finally:
        handle.remove()
    if len(seen) != 1:
        return f"its forward pass uses the head {len(seen)} times instead of once"
    hidden, raw, large = seen[0]
    product = torch.nn.functional.linear(hidden, head.weight, head.bias)
    if not (_close(base(**inputs)[0], hidden) and _close(product, raw)):
        return "its head doesn't give the product of its weight and what the model without the head returns"
    for transform in _candidates(model.config.get_text_config()):
        if _close(transform.apply_(large.double().clone()), logits):
            return base, head, transform
    return "it changes its logits by something other than a scale and a soft cap from its config"


def _candidates(config: Any) -> Iterator[HeadTransform]:
    """No change first, then each scale and soft cap that the config names, alone and together."""
    numbers = {
        name: float(value)
        for name, value in config.to_dict().items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value
    }
    named = [value for name, value in numbers.items() if "scal" in name or "multiplier" in name]
    scales = [1.0, *named, *(1.0 / value for value in named)]
    softcaps = [None, *(value for name, value in numbers.items() if "softcap" in name)]
    for softcap, scale in itertools.product(softcaps, scales):
        yield HeadTransform(scale, softcap)


def _close(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal up to the rounding of the less precise of the two."""
    if one.shape != other.shape:
        return False
    tolerance = 1e-5 if min(one.dtype.itemsize, other.dtype.itemsize) >= 4 else 0.03
    one, other = one.double(), other.double()
    return bool((one - other).abs().max() <= tolerance * other.abs().max().clamp(min=1e-30))
