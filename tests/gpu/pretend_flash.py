"""FlashAttention's two operators on sequences side by side, in plain products: arguments and shapes are torch's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def flash_forward(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, key_ends: Tensor, most: int, key_most: int,
    dropout: float, causal: bool, debug: bool, *, scale: float,
) -> tuple[Any, ...]:  # fmt: skip
    """`aten::_flash_attention_forward` of `[N, heads, dim]`: output and log-sum-exps `[heads, N]`."""
    assert dropout == 0.0
    assert debug is False
    out, total = torch.empty_like(query), query.new_empty(query.shape[1], len(query), dtype=torch.float32)
    for rows, seen in _each(ends, key_ends, most, key_most):
        scores = _scores(query[rows], key[seen], causal, scale)
        out[rows] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), _all_heads(value[seen], query)).to(out.dtype)
        total[:, rows] = scores.logsumexp(-1)
    return out, total, None, None, None


def flash_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, ends: Tensor, key_ends: Tensor,
    most: int, key_most: int, dropout: float, causal: bool, seed: Tensor, unused: Tensor, *, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """`aten::_flash_attention_backward`: gradients of query, key and value."""
    assert dropout == 0.0
    assert total.shape == (query.shape[1], len(query))
    assert total.is_contiguous()
    grads = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
    times = query.shape[1] // key.shape[1]
    for rows, seen in _each(ends, key_ends, most, key_most):
        weights = (_scores(query[rows], key[seen], causal, scale) - total[:, rows, None]).exp()
        above = grad[rows].float()
        of_weights = torch.einsum("qhd,khd->hqk", above, _all_heads(value[seen], query))
        of_scores = weights * (of_weights - (above * out[rows]).sum(-1).t()[..., None]) * scale
        grads[0][rows] = torch.einsum("hqk,khd->qhd", of_scores, _all_heads(key[seen], query)).to(query.dtype)
        of_key = torch.einsum("hqk,qhd->khd", of_scores, query[rows].float())
        of_value = torch.einsum("hqk,qhd->khd", weights, above)
        for into, part in zip(grads[1:], (of_key, of_value), strict=True):
            into[seen] = part.unflatten(1, (-1, times)).sum(2).to(into.dtype)
    return grads


def _each(ends: Tensor, key_ends: Tensor, most: int, key_most: int) -> Iterator[tuple[slice, slice]]:
    """Queries and keys of each sequence."""
    assert ends.dtype == key_ends.dtype == torch.int32
    assert (int(ends.diff().max()), int(key_ends.diff().max())) == (most, key_most)
    for row in range(len(ends) - 1):
        yield slice(*ends[row : row + 2].tolist()), slice(*key_ends[row : row + 2].tolist())


def _all_heads(tensor: Tensor, query: Tensor) -> Tensor:
    return tensor.float().repeat_interleave(query.shape[1] // tensor.shape[1], dim=1)


def _scores(query: Tensor, key: Tensor, causal: bool, scale: float) -> Tensor:
    """`[heads, queries, keys]`."""
    scores = torch.einsum("qhd,khd->hqk", query.float(), _all_heads(key, query)) * scale
    unseen = ~torch.ones(scores.shape[1:], dtype=torch.bool).tril()
    return scores.masked_fill(unseen, -torch.inf) if causal else scores
