"""Siblings attend to the same through the causal kernel of a GPU as through a mask; torch makes the mask on a CPU."""

from __future__ import annotations

import pytest
import torch

from toolrl_plugin_torch.prefixes.tree import grow
from toolrl_plugin_torch.prefixes.tree_attention import _attend, _attend_flash, _padded, _visible


@pytest.mark.parametrize("heads", [(4, 4), (6, 2)], ids=["as many key heads", "three heads a key head"])
@pytest.mark.parametrize("lengths", [(9, 9, 9), (12, 9, 7)], ids=["alike", "padded"])
def test_it_gives_what_a_mask_gives(heads: tuple[int, int], lengths: tuple[int, ...]) -> None:
    prompt = list(range(40))
    tree = grow([[*prompt, *range(100 * index, 100 * index + length)] for index, length in enumerate(lengths, 1)])
    part = tree.siblings[1]
    assert part.context
    assert part.longest == max(lengths) - 1, "the last token of a sequence predicts nothing"
    chance = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(tree.positions, count, 8, dtype=torch.float64, generator=chance, requires_grad=True)
        for count in (heads[0], heads[1], heads[1])
    )
    sizes = [sum(siblings.lengths) for siblings in tree.siblings]
    queries, keys, values = (tensor.split(sizes) for tensor in (query, key, value))
    seen = [_visible(part, 1, tensors) for tensors in (keys, values)]
    wanted = _attend(part, queries[1], *seen, tree, 0.3)
    got = _attend_flash(_padded(part, queries[1]), *(tensor.transpose(1, 2) for tensor in seen), 0.3)
    got = got.reshape(-1, heads[0], 8)
    got = got if part.unpadded_N is None else got.index_select(0, part.unpadded_N)
    assert torch.allclose(got, wanted, atol=1e-12)
    weights = torch.randn(wanted.shape, dtype=torch.float64, generator=chance)
    gradients = [torch.autograd.grad((out * weights).sum(), (query, key, value), retain_graph=True)
                 for out in (got, wanted)]  # fmt: skip
    assert all(torch.allclose(one, two, atol=1e-12) for one, two in zip(*gradients, strict=True))
