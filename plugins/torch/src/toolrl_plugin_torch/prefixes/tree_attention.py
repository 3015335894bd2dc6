"""Attention over a `TokenTree`: each node sees its ancestors and, causally, itself.

It is registered with transformers under a name of its own, and a model's config names it inside of `over_trees`; the
tree reaches it as an argument of the model, which models hand on to every layer. transformers makes no mask for a kind
of attention that it doesn't know, so none is in the way: for the usual kinds it takes positions that start anew for
another packed sequence, and hides the beginning.

Siblings attend together: queries `[siblings, length]` to the keys of their context and their own.

A model that masks in another way (windows, chunks, sinks) or carries a state from token to token would silently be
wrong. `sharing.py` detects such models by their config and compares every model with ordinary passes; this attention
rejects arguments that ask for anything but plain causal attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from toolrl_plugin_torch.prefixes.tree import Siblings, TokenTree

NAME = "toolrl_tree"
"""Under which transformers knows this attention."""
ARGUMENT = "token_tree"
"""What the tree is called among the arguments of a model."""

_REFUSED = {
    "sliding_window": "its attention sees a window of the latest tokens only",
    "softcap": "its attention caps its scores",
    "s_aux": "its attention has sinks",
    "position_bias": "its attention adds a bias for positions",
}
"""Arguments of an attention that has more to do than this one, unless they are None."""


class CannotShareError(Exception):
    """Why a model can't compute a tree; the text goes on after "because"."""


@contextmanager
def over_trees(models: Sequence[Any]) -> Iterator[None]:
    """Let models compute trees. Covers the backward pass too, which with gradient checkpointing computes layers again.

    Nothing else may use the models meanwhile.
    """
    configs = [without_adapter(model).config.get_text_config() for model in models]
    before = [config._attn_implementation for config in configs]
    try:
        for config in configs:
            config._attn_implementation = NAME
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


def without_adapter(model: Any) -> Any:
    """The transformers model in an adapter of peft, or the model as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def model_inputs(tree: TokenTree) -> dict[str, Any]:
    """The arguments of a model inside of `over_trees`; its row is the only one of its batch."""
    return {
        "input_ids": tree.input_ids_N[None],
        "position_ids": tree.position_ids_N[None],
        "use_cache": False,
        ARGUMENT: tree,
    }


def tree_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Queries `[1, heads, T, dim]`, keys and values `[1, kv heads, T, dim]` of one row; gives `[1, T, heads, dim]`.

    Raises CannotShareError for a model that asks for anything but plain causal attention.
    """
    tree = arguments.get(ARGUMENT)
    if not isinstance(tree, TokenTree):
        raise CannotShareError("its layers don't hand on what their attention is to be given")
    if attention_mask is not None:
        raise CannotShareError("it makes an attention mask of its own")
    if dropout:
        raise CannotShareError(f"its attention has a dropout of {dropout:g}")
    for name, why in _REFUSED.items():
        if arguments.get(name) is not None:
            raise CannotShareError(why)
    if arguments.get("is_causal") is False or getattr(module, "is_causal", True) is False:
        raise CannotShareError("its attention isn't causal")
    if query.shape[0] != 1 or query.shape[2] != tree.positions or key.shape[2] != tree.positions:
        raise CannotShareError(f"its attention was given {tuple(query.shape)} for a tree of {tree.positions} tokens")
    sizes = [sum(part.lengths) for part in tree.siblings]
    # Cut once: the gradient of a slice is as long as what it was cut from, that of a split is put together once.
    queries, keys, values = (tensor[0].transpose(0, 1).split(sizes) for tensor in (query, key, value))
    parts = [
        _attend(part, queries[number], _visible(part, number, keys), _visible(part, number, values), tree, scaling)
        for number, part in enumerate(tree.siblings)
    ]
    return torch.cat(parts)[None], None


def _padded(part: Siblings, own_NHD: torch.Tensor) -> torch.Tensor:
    """`[siblings, longest, heads, dim]`."""
    if part.padded_N is not None:
        own_NHD = own_NHD.index_select(0, part.padded_N)
    return own_NHD.reshape(len(part.lengths), part.longest, *own_NHD.shape[1:])


def _visible(part: Siblings, number: int, parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Context and own tokens of each sibling `[siblings, seen and longest, heads, dim]`."""
    own = _padded(part, parts[number])
    if not part.context:
        return own
    before = [parts[holder][start:end].expand(len(part.lengths), -1, -1, -1) for holder, start, end in part.context]
    return torch.cat([*before, own], dim=1)


def _attend(
    part: Siblings,
    query_NHD: torch.Tensor,
    key_SKGD: torch.Tensor,
    value_SKGD: torch.Tensor,
    tree: TokenTree,
    scaling: float | None,
) -> torch.Tensor:
    """What the tokens of some siblings get `[tokens, heads, dim]`. G key heads, each for H / G heads."""
    query_SLHD = _padded(part, query_NHD)
    siblings, longest, heads, dim = query_SLHD.shape
    key_SGKD, value_SGKD = key_SKGD.transpose(1, 2), value_SKGD.transpose(1, 2)
    if part.context and longest > 1 and query_SLHD.is_cuda and query_SLHD.dtype.itemsize == 2:
        out_SLHD = _attend_flash(query_SLHD, key_SGKD, value_SGKD, scaling)
    elif part.context:
        # The heads of one key head one after another, as if they were tokens: kernels that take a mask know no grouped
        # heads, and would be given a copy of the keys for each.
        groups, times = key_SGKD.shape[1], heads // key_SGKD.shape[1]
        query = query_SLHD.unflatten(2, (groups, times)).permute(0, 2, 3, 1, 4).reshape(siblings, groups, -1, dim)
        mask = _mask(tree, part, times, query.device) if longest > 1 else None
        out = scaled_dot_product_attention(query, key_SGKD, value_SGKD, attn_mask=mask, scale=scaling)
        out_SLHD = out.unflatten(2, (times, longest)).permute(0, 3, 1, 2, 4)
    else:
        grouped = heads != key_SGKD.shape[1]
        out_SLHD = scaled_dot_product_attention(
            query_SLHD.transpose(1, 2), key_SGKD, value_SGKD, is_causal=True, scale=scaling, enable_gqa=grouped
        ).transpose(1, 2)
    out_NHD = out_SLHD.reshape(siblings * longest, heads, -1)
    return out_NHD if part.unpadded_N is None else out_NHD.index_select(0, part.unpadded_N)


def _attend_flash(
    query_SLHD: torch.Tensor, key_SGKD: torch.Tensor, value_SGKD: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """What the tokens of some siblings get on a GPU in 16 bits `[siblings, longest, heads, dim]`.

    The fastest kernel there takes no mask but can be causal from the last key backwards: each query sees all of the
    context and its own beginning. Where that kernel can't be used, torch makes the mask.
    """
    times = query_SLHD.shape[2] // key_SGKD.shape[1]
    if times > 1:
        key_SGKD, value_SGKD = (part.repeat_interleave(times, dim=1) for part in (key_SGKD, value_SGKD))
    bias: Any = causal_lower_right(query_SLHD.shape[1], key_SGKD.shape[2])
    query_SHLD = query_SLHD.transpose(1, 2)
    return scaled_dot_product_attention(query_SHLD, key_SGKD, value_SGKD, attn_mask=bias, scale=scaling).transpose(1, 2)


def _mask(tree: TokenTree, part: Siblings, times: int, device: torch.device) -> torch.Tensor:
    """`[times · longest, seen and longest]`: True where a query sees a key. The queries are those of `times` heads."""
    shape = (times, part.longest, part.seen + part.longest)
    mask = tree.masks.get(shape)
    if mask is None:
        mask = torch.ones(shape, dtype=torch.bool, device=device).tril_(part.seen).flatten(0, 1)
        tree.masks[shape] = mask
    return mask


AttentionInterface.register(NAME, tree_attention)
