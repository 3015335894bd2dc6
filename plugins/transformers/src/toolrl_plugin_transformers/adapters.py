"""LoRA layers of peft in the shorter forward pass (`direct.py`): y = W x + s · B A x, on the live tensors.

Only layers that do just this are taken: one active adapter, neither merged nor switched off, without dropout, bias or a
variant such as DoRA. For others the module's own pass is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

_LAYER = ("peft.tuners.lora.layer", "Linear")


def is_lora(module: Any) -> bool:
    """Whether it is peft's LoRA around a linear layer. peft itself isn't imported."""
    return (type(module).__module__, type(module).__name__) == _LAYER


def is_plain(layer: Any) -> bool:
    """Whether `adapted` computes what a LoRA layer does."""
    if type(layer.base_layer) is not nn.Linear or layer.merged or layer.disable_adapters:
        return False
    if len(layer.active_adapters) != 1 or layer.active_adapters[0] not in layer.lora_A:
        return False
    name, weight = layer.active_adapters[0], layer.base_layer.weight
    parts = (layer.lora_A[name], layer.lora_B[name])
    return (
        name not in getattr(layer, "lora_variant", {})
        and type(layer.lora_dropout[name]) is nn.Identity
        and all(type(p) is nn.Linear and p.bias is None and p.weight.dtype == weight.dtype for p in parts)
    )


def without_parts(module: Any) -> Iterator[Any]:
    """All parts of a module, but for those inside of LoRA layers."""
    yield module
    for child in () if is_lora(module) else module.children():
        yield from without_parts(child)


def inner_linears(layer: Any) -> Iterator[Any]:
    """The linear layers that a LoRA layer is made of."""
    name = layer.active_adapters[0]
    yield from (layer.base_layer, layer.lora_A[name], layer.lora_B[name])


def adapted(x: Tensor, layer: Any) -> Tensor:
    """`[N, in]` to `[N, out]` through a plain LoRA layer."""
    name = layer.active_adapters[0]
    base, scaling, high = layer.base_layer, layer.scaling[name], layer.lora_B[name].weight
    y = F.linear(x, base.weight, base.bias)
    low = F.linear(x, layer.lora_A[name].weight)
    if x.dtype.itemsize > 2:
        return y.addmm_(low, high.t(), alpha=scaling)
    # In 16 bits the layer rounds between its steps; so must this, to sample what is trained.
    return y + F.linear(low, high) * scaling
