"""Attention over a `TokenTree` and its gradient, by kernels that know nothing of trees.

Each node attends to itself, causally, and to each of its ancestors, whole. What stands below a node stands right behind
it, so these are few calls: one causal one for all nodes, and one for each depth of ancestors. On a GPU a call takes
sequences of any length side by side; the kernel for CPUs takes them one after another. There is no mask, no padding and
no copy of keys for those that share them. With o and l the outputs and log-sum-exps of two calls, the whole is

    l = log(exp(l₁) + exp(l₂))    o = exp(l₁ - l) · o₁ + exp(l₂ - l) · o₂

(FlashAttention-2, arXiv 2307.08691, section 3.1). Given the whole's o and l a kernel's backward pass computes each
call's exact gradient: it makes the probabilities of the call's keys anew, as exp(score - l).

The part for GPUs (`_Packed`) has not been run on one yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from toolrl_plugin_torch.prefixes.tree import Node, TokenTree, tree_of

Tensors = tuple[Tensor, Tensor, Tensor]


class AttentionInputs(NamedTuple):
    """Of one row: N tokens, G key heads, each for H / G heads. Keys and values have the same dimension."""

    query_NHD: Tensor
    key_NGD: Tensor
    value_NGD: Tensor


def attend(inputs: AttentionInputs, tree: TokenTree, scale: float) -> tuple[Tensor, Tensor]:
    """Output `[N, H, D]` and log-sum-exp of the scores `[N, H]`.

    Raises RuntimeError where no kernel takes such tensors.
    """
    query, key, value = inputs
    out = torch.empty_like(query)
    total = query.new_empty(query.shape[:2], dtype=torch.promote_types(query.dtype, torch.float32))
    for call in _calls(tree):
        part, top = call.forward(query[call.queries], key[call.keys], value[call.keys], scale)
        if not call.causal:
            before, l_before = out[call.queries], total[call.queries]
            part = torch.lerp(before.to(top.dtype), part.to(top.dtype), torch.sigmoid(top - l_before)[..., None])
            part, top = part.to(out.dtype), torch.logaddexp(top, l_before)
        out[call.queries], total[call.queries] = part, top
    return out, total


def attend_backward(
    grad_NHD: Tensor,
    inputs: AttentionInputs,
    forward: tuple[Tensor, Tensor],
    grads: Tensors,
    tree: TokenTree,
    scale: float,
) -> None:
    """Put the gradients of query, key and value into `grads`. `forward`: what `attend` gave."""
    query, key, value = inputs
    out, total = forward
    for call in _calls(tree):
        rows, seen = call.queries, call.keys
        found = call.backward((grad_NHD[rows], query[rows], key[seen], value[seen], out[rows], total[rows]), scale)
        for into, places, grad in zip(grads, (rows, seen, seen), found, strict=True):
            into[places] = grad if call.causal else into[places] + grad


def tree_attention(query: Tensor, key: Tensor, value: Tensor, tree: TokenTree, scale: float) -> Tensor:
    """The output of `attend`, with its gradient. Compiled code calls it as one operator."""
    out: Tensor = _attend(query, key, value, tree.handle, scale)[0]
    return out


@torch.library.custom_op("toolrl::attend", mutates_args=())
def _attend(query: Tensor, key: Tensor, value: Tensor, tree: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    return attend(AttentionInputs(query, key, value), tree_of(tree), scale)


@_attend.register_fake
def _(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(query.dtype, torch.float32)
    return torch.empty_like(query), query.new_empty(query.shape[:2], dtype=dtype)


@torch.library.custom_op("toolrl::attend_backward", mutates_args=())
def _attend_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, tree: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    grads = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    attend_backward(grad, AttentionInputs(query, key, value), (out, total), grads, tree_of(tree), scale)
    return grads


@_attend_backward.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensors:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, tree, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output, tree)


def _gradients(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_attend_backward(grad, *ctx.saved_tensors, ctx.scale), None, None


_attend.register_autograd(_gradients, setup_context=_save)


@dataclass(frozen=True, slots=True)
class _OneByOne:
    """The tokens of some nodes of one length each see their own, or those of one node see those of another: torch's
    kernel for CPUs, which knows no lengths."""

    queries: slice
    keys: slice
    causal: bool
    nodes: int = 1

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, total = kernel(*self._by_head((query, key, value)), 0.0, self.causal, scale=scale)
        return out.transpose(1, 2).flatten(0, 1), total.transpose(1, 2).flatten(0, 1)

    def backward(self, tensors: Iterable[Tensor], scale: float) -> tuple[Tensor, ...]:
        kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        # In float32 at least: of short nodes the kernel takes twice as long in 16 bits.
        wide = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in tensors)
        grads = kernel(*self._by_head(wide), 0.0, self.causal, scale=scale)
        return tuple(x.transpose(1, 2).flatten(0, 1) for x in grads)

    def _by_head(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """`[tokens, heads, …]` to `[nodes, heads, tokens, …]`."""
        return (x.unflatten(0, (self.nodes, -1)).transpose(1, 2) for x in tensors)


@dataclass(frozen=True, slots=True)
class _Packed:
    """The tokens of several nodes see those of one each: FlashAttention, which takes sequences side by side."""

    queries: slice | Tensor
    keys: slice | Tensor
    causal: bool
    lengths: tuple[Tensor, Tensor, int, int]
    """Where the queries of each begin and end, and the keys (int32); the most of each."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        kernel: Any = torch.ops.aten._flash_attention_forward
        out, total, *_ = kernel(query, key, value, *self.lengths, 0.0, self.causal, False, scale=scale)
        return out, total.transpose(0, 1)

    def backward(self, tensors: Iterable[Tensor], scale: float) -> tuple[Tensor, ...]:
        kernel: Any = torch.ops.aten._flash_attention_backward
        *inputs, total = tensors
        seed = torch.empty(2, dtype=torch.uint64, device=total.device)  # of a dropout that there isn't
        total = total.transpose(0, 1).contiguous()
        grads: tuple[Tensor, ...] = kernel(
            *inputs, total, *self.lengths, 0.0, self.causal, seed, seed.new_empty(()), scale=scale
        )
        return grads


@lru_cache(maxsize=4)  # for the layers of a model, and their backward passes
def _calls(tree: TokenTree) -> list[_OneByOne] | list[_Packed]:
    """The nodes themselves, then what is below nodes: parents before children."""
    if tree.input_ids_N.is_cuda:
        return _packed(tree)
    runs = [list(run) for _, run in groupby(tree.nodes, key=lambda node: node.end - node.start)]
    own = [_OneByOne(*[slice(run[0].start, run[-1].end)] * 2, True, len(run)) for run in runs]
    return own + [_OneByOne(slice(it.end, it.until), slice(it.start, it.end), False) for it in _forks(tree)]


def _packed(tree: TokenTree) -> list[_Packed]:
    device = tree.input_ids_N.device
    ends, most = _lengths([(node.start, node.end) for node in tree.nodes], device)
    packed = [_Packed(slice(None), slice(None), True, (ends, ends, most, most))]
    for _, level in groupby(_forks(tree), key=lambda node: node.depth):
        nodes = list(level)
        below, above = [(node.end, node.until) for node in nodes], [(node.start, node.end) for node in nodes]
        (ends, most), (key_ends, key_most) = _lengths(below, device), _lengths(above, device)
        lengths = (ends, key_ends, most, key_most)
        packed.append(_Packed(_places(below, device), _places(above, device), False, lengths))
    return packed


def _forks(tree: TokenTree) -> list[Node]:
    """Nodes with others below them, by depth."""
    return sorted((node for node in tree.nodes if node.until > node.end), key=lambda node: node.depth)


def _lengths(stretches: list[tuple[int, int]], device: torch.device) -> tuple[Tensor, int]:
    lengths = [end - start for start, end in stretches]
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=device), max(lengths)


def _places(stretches: list[tuple[int, int]], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(start, end) for start, end in stretches]).to(device)
