"""The forward pass of the llama family, on the module's own parameters, without the module's own Python.

A transformers layer makes some eighty calls for each decoding step; where the model is small or few episodes decode
they take longer than the arithmetic. This makes about twenty-five. It stands in for a module only where every part is
exactly what it expects (`Direct.of` gives None otherwise) and, like the module, only after the check at start.

LoRA layers of peft are y = W x + s · B A x on the live tensors. Only layers that do just this are taken: one active
adapter, neither merged nor switched off, without dropout, bias or a variant such as DoRA.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor, nn

from toolrl_plugin_torch.head import wide_linear
from toolrl_plugin_transformers.cache import SlotCache

_FAMILY = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}
_TORCH_PARTS = (nn.Linear, nn.Embedding, nn.ModuleList, nn.SiLU)
_LAYER = ("peft.tuners.lora.layer", "Linear")
_STATIC_ROPE = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary embedding whose angles depend on the position alone."""


class Direct:
    """The forward pass of one module."""

    def __init__(self, module: Any) -> None:
        config = module.config
        self._module = module
        self._embedding = module.model.embed_tokens
        self._layers = list(module.model.layers)
        self._norm = module.model.norm
        self._head = module.lm_head
        self._wide_head: Tensor | None = None
        self._heads = config.num_attention_heads
        self._kv_heads = config.num_key_value_heads
        self._rotary = module.model.rotary_emb
        self._cos, self._sin = self._angles(0)

    @classmethod
    def of(cls, module: Any) -> Direct | None:
        """For a module that it can stand in for, else None."""
        if type(module).__name__ not in _FAMILY or not type(module).__module__.startswith("transformers.models."):
            return None
        config = module.config
        rope = getattr(module.model.rotary_emb, "rope_type", None)
        plain = (
            getattr(config, "_attn_implementation", None) == "sdpa"
            and getattr(config, "hidden_act", None) == "silu"
            and set(getattr(config, "layer_types", None) or ["full_attention"]) == {"full_attention"}
            and getattr(config, "pretraining_tp", 1) == 1
            and rope in _STATIC_ROPE
        )
        if not plain or not _untouched(module):
            return None
        direct = cls(module)
        return direct if direct._cos.shape[-1] == module.model.layers[0].self_attn.head_dim else None

    def _angles(self, positions: int) -> tuple[Tensor, Tensor]:
        """Tables `[positions, dim]` of cos and sin."""
        weight = self._embedding.weight
        every = torch.arange(positions, device=weight.device)[None]
        cos, sin = self._rotary(weight.new_zeros(1), every)
        # rotate_half(x) · sin, with the sign taken into the table: the first half of the dimensions is negated.
        half = sin.shape[-1] // 2
        return cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), dim=-1)

    @property
    def usable(self) -> bool:
        """False while a hook or an adapter of another kind hangs on the module, which this would pass by."""
        return _untouched(self._module)

    def enter(self) -> None:
        """The weights stay as they are until `leave`. A head in 16 bits is held in float32 meanwhile: a CPU would
        convert it anew for each token, which takes as long as the multiplication."""
        weight = getattr(self._head, "weight", None)
        if type(self._head) is nn.Linear and weight.device.type == "cpu" and weight.dtype.itemsize == 2:
            self._wide_head = weight.detach().float()

    def leave(self) -> None:
        """The weights may change."""
        self._wide_head = None

    def __call__(
        self,
        slots: SlotCache,
        first: int,
        ids_BT: Tensor,
        positions_BT: Tensor,
        columns_BT: Tensor,
        mask: Tensor,
        shared: int = 0,
    ) -> Tensor:
        """Logits `[B, V]` after the last tokens of the slots `first …`; keys and values go to their columns. Of
        decoding rows the first `shared` columns are those of the first row."""
        batch, width = ids_BT.shape
        rows = slice(first, first + batch)
        index = slots.write_index(first, columns_BT, heads_last=True)
        length = mask.shape[-1]
        if length > self._cos.shape[0]:
            self._cos, self._sin = self._angles(2 * length)
        flat = positions_BT.reshape(-1)
        cos, sin = self._cos[flat][:, None], self._sin[flat][:, None]
        x = F.embedding(ids_BT.reshape(-1), self._embedding.weight)
        for number, layer in enumerate(self._layers):
            h = _norm(x, layer.input_layernorm)
            keys, values = slots.keys[number], slots.values[number]
            query = self._project(h, layer.self_attn, cos, sin, keys, values, index)
            query = query.unflatten(0, (batch, width))
            stored = keys[rows, :, :length], values[rows, :, :length]
            heads = _attend(query, *stored, mask, layer.self_attn.scaling, shared)
            if width > 1 and number + 1 == len(self._layers):  # Of the rest only the last tokens' logits are wanted.
                heads, x = (tokens.unflatten(0, (batch, width))[:, -1] for tokens in (heads, x))
            x = x + self._linear(heads, layer.self_attn.o_proj)
            h = _norm(x, layer.post_attention_layernorm)
            h = F.silu(self._linear(h, layer.mlp.gate_proj)).mul_(self._linear(h, layer.mlp.up_proj))
            x = x + self._linear(h, layer.mlp.down_proj)
        x = _norm(x, self._norm)
        if x.dtype.itemsize > 2 or type(self._head) is not nn.Linear:
            return self._linear(x, self._head)
        if self._wide_head is not None:
            bias = self._head.bias
            return F.linear(x.float(), self._wide_head, None if bias is None else bias.float())
        return wide_linear(x, self._head.weight, self._head.bias, torch.float32)

    def _linear(self, x: Tensor, module: Any, out: Tensor | None = None) -> Tensor:
        if type(module) is not nn.Linear:
            y = _adapted(x, module)
            return y if out is None else out.copy_(y)
        weight = module.weight.t()
        return torch.mm(x, weight, out=out) if module.bias is None else torch.addmm(module.bias, x, weight, out=out)

    def _project(
        self, h: Tensor, attention: Any, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, index: Tensor
    ) -> Tensor:
        """Queries `[B · T, heads, dim]`; keys and values go to their slots."""
        count, heads, dim = h.shape[0], self._heads, keys.shape[-1]
        both = h.new_empty(count, heads + self._kv_heads, dim)
        flat = both.view(count, -1)
        self._linear(h, attention.q_proj, out=flat[:, : heads * dim])
        self._linear(h, attention.k_proj, out=flat[:, heads * dim :])
        value = self._linear(h, attention.v_proj)
        if hasattr(attention, "q_norm"):
            # Queries and keys at once: for a step of decoding a call costs more than its arithmetic.
            norms = (attention.q_norm.weight.expand(heads, -1), attention.k_norm.weight.expand(self._kv_heads, -1))
            both = _scaled(both, torch.cat(norms), attention.q_norm.variance_epsilon)
        both = _rotate(both, cos, sin)
        keys.view(-1, dim).index_copy_(0, index, both[:, heads:].reshape(-1, dim))
        values.view(-1, values.shape[-1]).index_copy_(0, index, value.view(-1, values.shape[-1]))
        return both[:, :heads]


def _norm(x: Tensor, module: Any) -> Tensor:
    return _scaled(x, module.weight, module.variance_epsilon)


def _scaled(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x over its root mean square along the last dimension, times the weight."""
    if x.dtype.itemsize > 2:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        mean = torch.addcmul(_number(eps, x.dtype, x.device), length, length, value=1.0 / x.shape[-1])
        return (x * mean.rsqrt_()).mul_(weight)
    # In 16 bits the module rounds before it applies the weight; so must this, to sample what is trained.
    return weight * F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype)


@cache
def _number(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=dtype, device=device)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of `[N, heads, dim]`; `sin` has the sign of rotate_half in it."""
    rotated = x.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(x * cos, rotated, sin) if x.dtype.itemsize > 2 else x * cos + rotated * sin


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, shared: int = 0) -> Tensor:
    """`query [B, T, Hq, D]`, keys and values `[B, H, L, D]`, mask `[B, 1, T, L]`; gives `[B · T, Hq · D]`."""
    batch, width, heads, dim = query.shape
    kv_heads = key.shape[1]
    if width == 1:  # the query heads of one key head side by side, as if they were positions
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, dim)
        if shared:
            return _attend_shared(grouped * scaling, key, value, mask, shared).reshape(batch, heads * dim)
        out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
        return out.reshape(batch, heads * dim)
    # Here too, since kernels that take a mask know no grouped heads: for each a copy of the keys would be made.
    group = heads // kv_heads
    grouped = query.unflatten(2, (kv_heads, group)).permute(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, dim)
    out = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask.repeat(1, 1, group, 1), scale=scaling)
    return out.unflatten(2, (group, width)).permute(0, 3, 1, 2, 4).reshape(batch * width, heads * dim)


def _attend_shared(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, shared: int) -> Tensor:
    """One scaled query a head, `[B, H, G, D]`, where all rows have their first `shared` keys in common: those are read
    once for all rows. Decoding is bound by what it reads."""
    batch, kv_heads, group, _ = query.shape

    def by_head(x: Tensor) -> Tensor:
        """`[B, H, G, …]` to `[H, B · G, …]`."""
        return x.transpose(0, 1).flatten(1, 2)

    def by_row(x: Tensor) -> Tensor:
        return x.unflatten(1, (batch, group)).transpose(0, 1)

    first = torch.bmm(by_head(query), key[0, :, :shared].transpose(1, 2))
    own_key, own_value = (x[:, :, shared:].flatten(0, 1) for x in (key, value))
    own = torch.bmm(query.flatten(0, 1), own_key.transpose(1, 2)).unflatten(0, (batch, kv_heads)) + mask[..., shared:]
    top = torch.maximum(by_row(first.amax(-1, keepdim=True)), own.amax(-1, keepdim=True))
    first = (first - by_head(top)).exp_()
    own = own.sub_(top).exp_()
    total = by_row(first.sum(-1, keepdim=True)) + own.sum(-1, keepdim=True)
    mixed = by_row(torch.bmm(first, value[0, :, :shared]))
    return (mixed + torch.bmm(own.flatten(0, 1), own_value).unflatten(0, (batch, kv_heads))) / total


def _untouched(module: Any) -> bool:
    """Whether every part is the class that the forward pass above is written for, without hooks."""
    source = type(module).__module__
    for part in _without_parts(module):
        if _is_lora(part):
            if not _is_plain(part) or not all(map(_unhooked, (part, *_inner_linears(part)))):
                return False
            continue
        known = type(part) in _TORCH_PARTS or type(part).__module__ in (source, "transformers.activations")
        if not known or not _unhooked(part):
            return False
    return True


def _unhooked(part: Any) -> bool:
    return not part._forward_hooks and not part._forward_pre_hooks and "forward" not in vars(part)


def _is_lora(module: Any) -> bool:
    """Whether it is peft's LoRA around a linear layer. peft itself isn't imported."""
    return (type(module).__module__, type(module).__name__) == _LAYER


def _is_plain(layer: Any) -> bool:
    """Whether `_adapted` computes what a LoRA layer does."""
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


def _without_parts(module: Any) -> Iterator[Any]:
    """All parts of a module, but for those inside of LoRA layers."""
    yield module
    for child in () if _is_lora(module) else module.children():
        yield from _without_parts(child)


def _inner_linears(layer: Any) -> Iterator[Any]:
    """The linear layers that a LoRA layer is made of."""
    name = layer.active_adapters[0]
    yield from (layer.base_layer, layer.lora_A[name], layer.lora_B[name])


def _adapted(x: Tensor, layer: Any) -> Tensor:
    """`[N, in]` to `[N, out]` through a plain LoRA layer."""
    name = layer.active_adapters[0]
    base, scaling, high = layer.base_layer, layer.scaling[name], layer.lora_B[name].weight
    y = F.linear(x, base.weight, base.bias)
    low = F.linear(x, layer.lora_A[name].weight)
    if x.dtype.itemsize > 2:
        return y.addmm_(low, high.t(), alpha=scaling)
    # In 16 bits the layer rounds between its steps; so must this, to sample what is trained.
    return y + F.linear(low, high) * scaling
