"""Attention over a `TokenTree`: each node sees its ancestors and, causally, itself.

It is registered with transformers under a name of its own, and a model's config names it inside of `over_trees`; the
tree reaches it as an argument of the model, which models hand on to every layer. transformers makes no mask for a kind
of attention that it doesn't know, so none is in the way: for the usual kinds it takes positions that start anew for
another packed sequence, and hides the beginning.

A model that masks in another way (windows, chunks, sinks) or carries a state from token to token would silently be
wrong. `sharing.py` detects such models by their config and compares every model with ordinary passes; this attention
rejects arguments that ask for anything but plain causal attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import AttentionInterface

from toolrl_plugin_torch.prefixes import attention
from toolrl_plugin_torch.prefixes.tree import TokenTree
from toolrl_plugin_torch.sharding.sequence_parallel import SequenceGroup

NAME = "toolrl_tree"
"""Under which transformers knows this attention."""
ARGUMENT = "token_tree"
"""What the tree is called among the arguments of a model."""
GROUP = "sequence_group"
"""What the ranks that compute the tree together are called there."""

_REFUSED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of an attention that has more to do than this one, unless they are None."""


class CannotShareError(Exception):
    """Why a model can't compute a tree, as what follows "because"."""


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


def model_inputs(tree: TokenTree, group: SequenceGroup | None = None) -> dict[str, Any]:
    """The arguments of a model inside of `over_trees`; its row is the only one of its batch. With a `group`, this
    rank's share of the row."""
    ids, positions = tree.input_ids_N, tree.position_ids_N
    inputs: dict[str, Any] = {"use_cache": False, ARGUMENT: tree}
    if group is not None:
        ids, positions = group.cut(ids), group.cut(positions)
        inputs[GROUP] = group
    return {"input_ids": ids[None], "position_ids": positions[None], **inputs}


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
    asked = {name: arguments[name] for name in _REFUSED if arguments.get(name) is not None}
    causal = arguments.get("is_causal") is not False and getattr(module, "is_causal", True) is not False
    if asked or dropout or attention_mask is not None or not causal:
        raise CannotShareError(
            f"its attention isn't plain (causal: {causal}, a mask of its own: {attention_mask is not None}, dropout: "
            f"{dropout:g}, {asked})"
        )
    if query.is_cuda and query.dtype.itemsize != 2:
        raise CannotShareError(f"attention over trees takes 16-bit types on a GPU, not {query.dtype}")
    if query.is_cuda and torch.are_deterministic_algorithms_enabled():
        raise CannotShareError("FlashAttention's gradients add up in any order, and the run is deterministic")
    group: SequenceGroup | None = arguments.get(GROUP)
    tokens = tree.positions if group is None else -(-tree.positions // group.size)
    if query.shape[0] != 1 or query.shape[2] != tokens or key.shape[2] != tokens:
        raise CannotShareError(f"its attention was given {tuple(query.shape)} for a tree of {tree.positions} tokens")
    row = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    if group is not None:
        if query.shape[1] % group.size:
            raise CannotShareError(f"its {query.shape[1]} attention heads can't be shared evenly by {group.size} ranks")
        row = group.split_heads(row, tree.positions)
    dim = row[2].shape[-1]
    if dim < row[0].shape[-1]:  # kernels take one dimension for all
        row[2] = pad(row[2], (0, row[0].shape[-1] - dim))
    out = attention.tree_attention(*row, tree, scaling if scaling is not None else row[0].shape[-1] ** -0.5)
    out = out[..., :dim]
    return (out if group is None else group.join_heads(out, tokens))[None], None


AttentionInterface.register(NAME, tree_attention)
