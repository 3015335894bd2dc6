"""A layer of the llama family with its gradient written out, for a CPU.

Through the modules, each norm, rotation and activation is several passes over all tokens, forward and backward, through
more memory than a processor's cache holds, and each keeps what it made. Here a stretch of `_ROWS` tokens goes through a
whole half of the layer at once: its products and what lies between them. Kept for the backward pass are the inputs of
norms, rotations, activations and attention; the cheap rest is made again. Weights' gradients are summed up by the
products themselves.

Norms are computed in float32 whatever the weights' type, as the modules do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from toolrl_plugin_torch.prefixes.attention import AttentionInputs, attend, attend_backward
from toolrl_plugin_torch.prefixes.tree import TokenTree

_ROWS = 1024
"""Tokens of a stretch, for each thread."""
_PROJECTION = ("query", "key", "value")
"""Weights that attention's input is multiplied with: one product does for the three."""


class Weights(NamedTuple):
    """A layer's parameters, `[outputs, inputs]` where they are matrices."""

    before: Tensor
    query: Tensor
    query_bias: Tensor | None
    key: Tensor
    key_bias: Tensor | None
    value: Tensor
    value_bias: Tensor | None
    query_norm: Tensor | None
    key_norm: Tensor | None
    out: Tensor
    after: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True, slots=True)
class Pass:
    """What the layers of one pass have in common."""

    tree: TokenTree
    cos_N1D: Tensor
    sin_N1D: Tensor
    """The first half negated: x · cos + roll(x) · sin rotates."""
    heads: int
    dim: int
    eps: float
    scale: float
    keep: bool
    """Whether a backward pass follows."""


class _Gradients:
    """Sums of the gradients of those weights that need one, over stretches."""

    def __init__(self, weights: Weights, needed: tuple[bool, ...]) -> None:
        self._weights = weights
        self._needed = dict(zip(Weights._fields, needed, strict=True))
        self._sums: dict[str, Tensor] = {}
        self._joined: Tensor | None = None

    def projection(self, grad: Tensor, x: Tensor) -> None:
        """Of queries, keys and values side by side, from the gradient of their output."""
        if any(self._needed[name] for name in _PROJECTION):
            if self._joined is None:
                self._joined = grad.t() @ x
            else:
                self._joined.addmm_(grad.t(), x)
        if any(self._needed[f"{name}_bias"] for name in _PROJECTION):
            parts = grad.sum(0).split([len(getattr(self._weights, name)) for name in _PROJECTION])
            for name, part in zip(_PROJECTION, parts, strict=True):
                self.add(f"{name}_bias", part)

    def product(self, name: str, grad: Tensor, x: Tensor) -> None:
        """Of a linear map of x, from the gradient of its output."""
        if self._needed[name]:
            self._sums[name] = self._sums[name].addmm_(grad.t(), x) if name in self._sums else grad.t() @ x

    def add(self, name: str, value: Tensor) -> None:
        if self._needed[name]:
            self._sums[name] = self._sums[name].add_(value) if name in self._sums else value

    def all(self) -> tuple[Tensor | None, ...]:
        if self._joined is not None:
            parts = self._joined.split([len(getattr(self._weights, name)) for name in _PROJECTION])
            for name, part in zip(_PROJECTION, parts, strict=True):
                self.add(name, part)
        return tuple(self._sums.get(name) for name in Weights._fields)


def layer(x_NH: Tensor, weights: Weights, settings: Pass, rows_M: Tensor | None = None) -> Tensor:
    """What a layer makes of its tokens `[N, H]`; with `rows_M` of those tokens only `[M, H]`."""
    y: Tensor = _FusedLayer.apply(x_NH, rows_M, settings, *weights)
    return y


class _FusedLayer(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, x_NH: Tensor, rows_M: Tensor | None, settings: Pass, *parameters: Tensor | None) -> Tensor:
        weights = Weights(*parameters)
        raw, turned, value = _project(x_NH, weights, settings)
        inputs = AttentionInputs(turned[:, : settings.heads], turned[:, settings.heads :], value)
        out, total = attend(inputs, settings.tree, settings.scale)
        mixed, x = out.flatten(1), x_NH
        if rows_M is not None:
            mixed, x = mixed.index_select(0, rows_M), x.index_select(0, rows_M)
        y, between, gate, up = _finish(x, mixed, weights, settings)
        ctx.settings = settings
        ctx.save_for_backward(x_NH, rows_M, raw, turned, value, out, total, mixed, between, gate, up, *parameters)
        return y

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_y: Tensor) -> tuple[Tensor | None, ...]:
        x, rows_M, raw, turned, value, out, total, mixed, between, gate, up, *parameters = ctx.saved_tensors
        settings: Pass = ctx.settings
        weights = Weights(*parameters)
        grads = _Gradients(weights, ctx.needs_input_grad[3:])
        grad_x, grad_mixed = _finish_backward(grad_y, mixed, between, gate, up, weights, settings, grads)
        if rows_M is not None:
            grad_x = torch.zeros_like(x).index_add_(0, rows_M, grad_x)
            grad_mixed = grad_mixed.new_zeros(len(x), mixed.shape[1]).index_add_(0, rows_M, grad_mixed)
        sizes = [settings.heads, value.shape[1], value.shape[1]]
        grad_made = x.new_empty(len(x), sum(sizes), settings.dim)
        grad_query, grad_key, grad_value = grad_made.split(sizes, dim=1)
        attend_backward(
            grad_mixed.view_as(out),
            AttentionInputs(turned[:, : settings.heads], turned[:, settings.heads :], value),
            (out, total),
            (grad_query, grad_key, grad_value),
            settings.tree,
            settings.scale,
        )
        _project_backward(grad_made, x, raw, weights, settings, grads, grad_x)
        return grad_x, None, None, *grads.all()


def _stretch() -> int:
    return _ROWS * int(torch.get_num_threads())


def _stretches(count: int) -> Iterator[slice]:
    size = _stretch()
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))


def _normalised(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x over its root mean square along the last dimension, and one over that."""
    wide = x.float()
    inverse = torch.linalg.vector_norm(wide, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * inverse).to(x.dtype), inverse.to(x.dtype)


def _norm_backward(grad: Tensor, normal: Tensor, inverse: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a norm's input, which takes the place of `grad`, and of its weight, over the first dimension.

    With n = x / rms(x) and g = grad · weight: ∂x = (g − n · mean(g · n)) / rms(x).
    """
    product = grad * normal
    of_weight = product.sum(0)
    mean = torch.linalg.vecdot(product, weight) if weight.ndim > 1 else product @ weight
    mean = mean.div_(grad.shape[-1])[..., None]
    return grad.mul_(weight).addcmul_(normal, mean, value=-1.0).mul_(inverse), of_weight


def _head_norms(weights: Weights, heads: int, key_heads: int) -> Tensor | None:
    """`[heads of queries and keys, dim]`."""
    if weights.query_norm is None or weights.key_norm is None:
        return None
    return torch.cat([weights.query_norm.expand(heads, -1), weights.key_norm.expand(key_heads, -1)])


def _joined(weights: Weights) -> tuple[Tensor, Tensor | None]:
    """Weight and bias of queries, keys and values below each other."""
    biases = [bias for bias in (weights.query_bias, weights.key_bias, weights.value_bias) if bias is not None]
    return torch.cat([weights.query, weights.key, weights.value]), torch.cat(biases) if biases else None


def _project(x_NH: Tensor, weights: Weights, settings: Pass) -> tuple[Tensor | None, Tensor, Tensor]:
    """Queries and keys side by side as they come from the weights, where a norm follows; as attention takes them; and
    values: all `[N, heads, dim]`."""
    count, dim, heads = len(x_NH), settings.dim, settings.heads
    key_heads = weights.key.shape[0] // dim
    norms = _head_norms(weights, heads, key_heads)
    weight, bias = _joined(weights)
    made = x_NH.new_empty(count, heads + 2 * key_heads, dim)
    before, value = made.split([heads + key_heads, key_heads], dim=1)
    # Where nothing needs them as they were, they are turned in their place.
    turned = x_NH.new_empty(*before.shape) if norms is not None else before
    for rows in _stretches(count):
        h = _normalised(x_NH[rows], settings.eps)[0].mul_(weights.before)
        into = made[rows].flatten(1)
        torch.mm(h, weight.t(), out=into) if bias is None else torch.addmm(bias, h, weight.t(), out=into)
        both = before[rows]
        if norms is not None:
            both = _normalised(both, settings.eps)[0].mul_(norms)
        rolled = both.roll(dim // 2, dims=-1)
        torch.mul(both, settings.cos_N1D[rows], out=turned[rows]).addcmul_(rolled, settings.sin_N1D[rows])
    return before if norms is not None else None, turned, value


def _project_backward(
    grad_made: Tensor,
    x_NH: Tensor,
    raw: Tensor | None,
    weights: Weights,
    settings: Pass,
    grads: _Gradients,
    grad_x: Tensor,
) -> None:
    """Add to `grad_x` what comes through queries, keys and values, whose gradients `[N, heads, dim]` are side by side
    and are overwritten."""
    heads, dim = settings.heads, settings.dim
    key_heads = weights.key.shape[0] // dim
    norms = _head_norms(weights, heads, key_heads)
    weight, _ = _joined(weights)
    for rows in _stretches(len(x_NH)):
        back = grad_made[rows, : heads + key_heads]
        both = (back * settings.sin_N1D[rows]).roll(dim // 2, dims=-1).addcmul_(back, settings.cos_N1D[rows])
        if norms is not None and raw is not None:
            both, of_norms = _norm_backward(both, *_normalised(raw[rows], settings.eps), norms)
            grads.add("query_norm", of_norms[:heads].sum(0))
            grads.add("key_norm", of_norms[heads:].sum(0))
        back.copy_(both)
        flat = grad_made[rows].flatten(1)
        normal, inverse = _normalised(x_NH[rows], settings.eps)
        grads.projection(flat, normal * weights.before)
        grad, of_norm = _norm_backward(flat @ weight, normal, inverse, weights.before)
        grads.add("before", of_norm)
        grad_x[rows] += grad


def _finish(x: Tensor, mixed: Tensor, weights: Weights, settings: Pass) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention's output through its projection, and the gated map: what the layer gives, and what is kept."""
    y, between = torch.empty_like(x), torch.empty_like(x)
    size = len(x) if settings.keep else 0
    gates, ups = (x.new_empty(size, weights.gate.shape[0]) for _ in range(2))
    spare = x.new_empty(min(_stretch(), len(x)), weights.gate.shape[0])
    for rows in _stretches(len(x)):
        middle = torch.addmm(x[rows], mixed[rows], weights.out.t(), out=between[rows])
        h = _normalised(middle, settings.eps)[0].mul_(weights.after)
        into = (gates[rows], ups[rows]) if settings.keep else (torch.empty_like(spare[: len(h)]) for _ in range(2))
        gate, up = into
        torch.mm(h, weights.gate.t(), out=gate)
        torch.mm(h, weights.up.t(), out=up)
        product = torch.ops.aten.silu.out(gate, out=spare[: len(h)]).mul_(up)
        torch.addmm(middle, product, weights.down.t(), out=y[rows])
    return y, between, gates, ups


def _finish_backward(
    grad_y: Tensor,
    mixed: Tensor,
    between: Tensor,
    gates: Tensor,
    ups: Tensor,
    weights: Weights,
    settings: Pass,
    grads: _Gradients,
) -> tuple[Tensor, Tensor]:
    """Gradients of the layer's input, as far as it comes past attention, and of attention's output."""
    grad_x, grad_mixed = torch.empty_like(between), torch.empty_like(mixed)
    # The same memory for each stretch, which so stays in the processor's cache.
    spare = between.new_empty(3, min(_stretch(), len(between)), weights.gate.shape[0])
    for rows in _stretches(len(between)):
        grad_out, gate, up = grad_y[rows], gates[rows], ups[rows]
        grad_product, grad_up, grad_gate = spare[:, : len(gate)]
        torch.mm(grad_out, weights.down, out=grad_product)
        active = torch.ops.aten.silu.out(gate, out=grad_up)
        grads.product("down", grad_out, torch.mul(active, up, out=grad_gate))
        active.mul_(grad_product)
        torch.ops.aten.silu_backward.grad_input(grad_product.mul_(up), gate, grad_input=grad_gate)
        normal, inverse = _normalised(between[rows], settings.eps)
        h = normal * weights.after
        grads.product("gate", grad_gate, h)
        grads.product("up", grad_up, h)
        grad = torch.mm(grad_gate, weights.gate).addmm_(grad_up, weights.up)
        grad, of_norm = _norm_backward(grad, normal, inverse, weights.after)
        grads.add("after", of_norm)
        torch.add(grad, grad_out, out=grad_x[rows])
        grads.product("out", grad_x[rows], mixed[rows])
        torch.mm(grad_x[rows], weights.out, out=grad_mixed[rows])
    return grad_x, grad_mixed
