"""Attention over a tree and its gradient equal attention with a mask of what each token sees."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from toolrl_plugin_torch.prefixes.attention import tree_attention
from toolrl_plugin_torch.prefixes.tree import TokenTree, grow
from toolrl_plugin_torch.prefixes.tree_attention import tree_attention as attention_of_layer


def deep_tree() -> TokenTree:
    """Two roots, three depths of ancestors, nodes of different length and of one token."""
    chance = torch.Generator().manual_seed(0)

    def draw(count: int) -> list[int]:
        return torch.randint(97, (count,), generator=chance).tolist()

    first, second = draw(40), draw(35)
    middle = [*first, *draw(37)]
    deepest = [*middle, *draw(33)]
    sequences = [[*deepest, *draw(count)] for count in (2, 9, 20)] + [[*middle, *draw(count)] for count in (5, 11)]
    sequences += [[*start, *draw(7)] for start in (first, second, second)]
    tree = grow(sequences)
    assert max(node.depth for node in tree.nodes) == 3
    return tree


def mask_of(tree: TokenTree) -> torch.Tensor:
    """`[N, N]`: True where the place of the row sees the other."""
    mask = torch.zeros(tree.positions, tree.positions, dtype=torch.bool)
    for node in tree.nodes:
        mask[node.start : node.until, node.start : node.end] = True
        own = slice(node.start, node.end)
        mask[own, own] = mask[own, own].tril()
    return mask


def by_mask(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, tree: TokenTree, scale: float) -> torch.Tensor:
    tensors = (tensor.transpose(0, 1) for tensor in (query, key, value))
    return scaled_dot_product_attention(*tensors, attn_mask=mask_of(tree), scale=scale, enable_gqa=True).transpose(0, 1)


def inputs_of(tree: TokenTree, heads: tuple[int, int], dtype: torch.dtype) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(1)
    return [
        torch.randn(tree.positions, count, 16, generator=chance, dtype=torch.float64).to(dtype).requires_grad_()
        for count in (heads[0], heads[1], heads[1])
    ]


def difference(tree: TokenTree, heads: tuple[int, int], dtype: torch.dtype) -> float:
    """Greatest of output and gradients, against float64 and a mask, relative to the greatest value."""
    wanted, got = inputs_of(tree, heads, torch.float64), inputs_of(tree, heads, dtype)
    weights = torch.randn(tree.positions, heads[0], 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = []
    for attend, tensors in ((by_mask, wanted), (tree_attention, got)):
        out = attend(*tensors, tree, 0.25)
        found.append([out, *torch.autograd.grad(out, tensors, weights.to(out.dtype))])
    with torch.no_grad():
        return max(float((one - other).abs().max() / one.abs().max()) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)], ids=["1:1", "2:1", "4:1"])
@pytest.mark.parametrize(("dtype", "allowed"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
def test_output_and_gradients_are_those_of_a_mask(heads: tuple[int, int], dtype: torch.dtype, allowed: float) -> None:
    assert difference(deep_tree(), heads, dtype) < allowed


def test_for_the_backward_pass_is_kept_what_flash_attention_keeps() -> None:
    """Query, key, value, output and log-sum-exp; no mask, and no copy of keys for the heads that share them."""
    tree = grow([[*([1] * 4096), number, *([2] * 4096)] for number in range(3)])
    tokens, heads, groups, dim = tree.positions, 4, 1, 4
    shapes = [(1, count, tokens, dim) for count in (heads, groups, groups)]
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        attention_of_layer(torch.nn.Module(), *inputs, None, token_tree=tree)
    assert tokens == 4 * 4096
    assert sum(kept.values()) <= 1.1 * 4 * tokens * (2 * heads * dim + 2 * groups * dim + heads)
