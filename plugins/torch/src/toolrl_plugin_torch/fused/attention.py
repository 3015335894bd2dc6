"""Attention over a `TokenTree` and its gradient, written out for torch's attention kernel on a CPU.

`tree_attention` gives every sibling a copy of its context's keys, and a mask. Here the context is attended to by the
tokens of all siblings at once, without copies or a mask, and each sibling attends to itself, causally, by the kernel
that skips what isn't seen. With o and l the outputs and log-sum-exps of the two, the whole is

    l = log(exp(l_context) + exp(l_own))    o = exp(l_context - l) · o_context + exp(l_own - l) · o_own

(FlashAttention-2, arXiv 2307.08691, section 3.1). Given the whole's o and l the kernel's backward pass computes each
part's exact gradient: it makes the probabilities of the part's keys anew, as exp(score - l).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from toolrl_plugin_torch.prefixes.tree import Siblings, TokenTree


def attend(
    query_NHD: Tensor, key_NGD: Tensor, value_NGD: Tensor, tree: TokenTree, scale: float
) -> tuple[Tensor, Tensor]:
    """Output `[N, heads, dim]` and log-sum-exp of the scores `[N, heads]` of one row's tokens. G key heads, each for
    heads / G heads."""
    out_NHD = query_NHD.new_empty(query_NHD.shape)
    total_NH = query_NHD.new_empty(query_NHD.shape[:2])
    for part in tree.siblings:
        rows = slice(part.start, part.end)
        own = [_padded(part, x[rows]) for x in (query_NHD, key_NGD, value_NGD)]
        mixed, total = (_unpadded(part, x) for x in _forward(*own, causal=True, scale=scale))
        if part.context:
            query = query_NHD[rows][None]
            context = (_context(tree, part, x)[None] for x in (key_NGD, value_NGD))
            other, top = (x[0] for x in _forward(query, *context, causal=False, scale=scale))
            mixed = torch.lerp(mixed, other, torch.sigmoid(top - total)[..., None])
            total = torch.logaddexp(top, total)
        out_NHD[rows], total_NH[rows] = mixed, total
    return out_NHD, total_NH


def attend_backward(
    grad_NHD: Tensor,
    forward: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    grads: tuple[Tensor, Tensor, Tensor],
    tree: TokenTree,
    scale: float,
) -> None:
    """Put the gradients of query, key and value into `grads`. `forward`: query, key, value, output and log-sum-exp."""
    query_NHD, key_NGD, value_NGD, out_NHD, total_NH = forward
    into_query, into_key, into_value = grads
    into_key.zero_()
    into_value.zero_()
    for part in tree.siblings:
        rows = slice(part.start, part.end)
        query, key, value = (_padded(part, x[rows]) for x in (query_NHD, key_NGD, value_NGD))
        out, total = (_padded(part, x[rows]) for x in (out_NHD, total_NH))
        own = _backward(_padded_grad(part, grad_NHD[rows]), query, key, value, out, total, causal=True, scale=scale)
        grad_query, grad_key, grad_value = (_unpadded(part, x) for x in own)
        into_query[rows] = grad_query
        into_key[rows] += grad_key
        into_value[rows] += grad_value
        if not part.context:
            continue
        query, grad, out, total = (x[rows][None] for x in (query_NHD, grad_NHD, out_NHD, total_NH))
        key, value = (_context(tree, part, x)[None] for x in (key_NGD, value_NGD))
        grad_query, grad_key, grad_value = _backward(grad, query, key, value, out, total, causal=False, scale=scale)
        into_query[rows] += grad_query[0]
        start = 0
        for place, count in _places(tree, part):
            into_key[place : place + count] += grad_key[0, start : start + count]
            into_value[place : place + count] += grad_value[0, start : start + count]
            start += count


def _forward(query: Tensor, key: Tensor, value: Tensor, *, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Of `[B, T, heads, dim]`: the same and `[B, T, heads]`."""
    kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, total = kernel(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), 0.0, causal, scale=scale)
    return out.transpose(1, 2), total.transpose(1, 2)


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, *, causal: bool, scale: float
) -> tuple[Tensor, ...]:
    """Gradients `[B, T, heads, dim]` of query, key and value."""
    kernel: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    tensors = (x.transpose(1, 2) for x in (grad, query, key, value, out, total))
    return tuple(x.transpose(1, 2) for x in kernel(*tensors, 0.0, causal, scale=scale))


def _padded(part: Siblings, own: Tensor) -> Tensor:
    """`[siblings, longest, …]`; padding repeats a sibling's last token."""
    if part.padded_N is not None:
        own = own.index_select(0, part.padded_N)
    return own.unflatten(0, (len(part.lengths), part.longest))


def _padded_grad(part: Siblings, own: Tensor) -> Tensor:
    """The same with zeros for padding."""
    if part.unpadded_N is not None:
        padded = own.new_zeros((len(part.lengths) * part.longest, *own.shape[1:]))
        own = padded.index_copy_(0, part.unpadded_N, own)
    return own.unflatten(0, (len(part.lengths), part.longest))


def _unpadded(part: Siblings, padded: Tensor) -> Tensor:
    own = padded.flatten(0, 1)
    return own if part.unpadded_N is None else own.index_select(0, part.unpadded_N)


def _places(tree: TokenTree, part: Siblings) -> list[tuple[int, int]]:
    """Where in the row the context's stretches start, and how long they are."""
    return [(tree.siblings[holder].start + start, end - start) for holder, start, end in part.context]


def _context(tree: TokenTree, part: Siblings, row: Tensor) -> Tensor:
    stretches = [row[place : place + count] for place, count in _places(tree, part)]
    return stretches[0] if len(stretches) == 1 else torch.cat(stretches)
