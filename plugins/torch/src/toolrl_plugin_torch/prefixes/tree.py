"""Token trees: sequences with common beginnings as one row, in which each beginning stands once.

The episodes of a group have their prompt in common, those of one environment the system prompt with the tools, and a
policy that has become sure of itself starts its answers alike. What several sequences share is computed once for all of
them: in a causal model a token's hidden state depends on the tokens before it only, and gradients add up by themselves.

Sequences in lexicographic order have equal beginnings side by side, and what neighbours have in common gives the tree.
A node holds the tokens of one stretch between two forks; a sequence is the path from a root to where it ends. A fork is
made only where it saves `WORTH_SHARING` tokens: below that another stretch of attention costs more than the tokens.

The row holds a node, then all below it, child after child: what sees a node's tokens stands right behind them
(`attention.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from weakref import WeakValueDictionary

import torch

from toolrl.types import common_beginning

WORTH_SHARING = 32
"""Tokens that sharing a stretch must save."""


@dataclass(frozen=True, slots=True)
class Node:
    """Tokens between two forks, as places in the row."""

    start: int
    end: int
    """Behind its last token."""
    until: int
    """Behind the last token of the nodes below it, which see all of its tokens."""
    depth: int
    """Its number of ancestors."""


@dataclass(frozen=True, eq=False)
class TokenTree:
    """One row of N tokens for B sequences, the longest of which has T."""

    input_ids_N: torch.Tensor
    """int64."""
    position_ids_N: torch.Tensor
    """int64: each token's place in its sequences."""
    predictor_BT: torch.Tensor
    """int64: the place in the row whose hidden state predicts token t of sequence b; 0 for t = 0 and padding."""
    nodes: tuple[Node, ...]
    """In the order of the row, which they cover whole."""
    handle: torch.Tensor = field(init=False, repr=False)
    """Stands for this tree among the arguments of an operator, which are tensors: see `tree_of`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "handle", torch.tensor(id(self)))
        _TREES[id(self)] = self

    @property
    def positions(self) -> int:
        """What a forward pass costs: N."""
        return int(self.input_ids_N.numel())

    def to(self, device: torch.device | str) -> TokenTree:
        """The same on a device."""
        ids, positions, predictor = (
            tensor.to(device, non_blocking=True)
            for tensor in (self.input_ids_N, self.position_ids_N, self.predictor_BT)
        )
        return replace(self, input_ids_N=ids, position_ids_N=positions, predictor_BT=predictor)


_TREES: WeakValueDictionary[int, TokenTree] = WeakValueDictionary()


def tree_of(handle: torch.Tensor) -> TokenTree:
    """The tree with this handle, while anything else holds it."""
    return _TREES[int(handle)]


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Tokens `start … end` of a sequence, and of all others that pass through."""

    parent: int
    row: int
    start: int
    end: int


def grow(sequences: Sequence[Sequence[int]], *, worth: int = WORTH_SHARING) -> TokenTree:
    """The tree of some sequences of two tokens or more.

    The last token of each isn't in it: nothing is predicted from it.
    """
    rows = [list(sequence[:-1]) for sequence in sequences]
    stretches, leaves = _stretches(rows, worth)
    nodes = _places(stretches)
    ids = [token for it in stretches for token in rows[it.row][it.start : it.end]]
    positions = [place for it in stretches for place in range(it.start, it.end)]
    predictor_BT = torch.zeros((len(rows), max(map(len, sequences))), dtype=torch.int64)
    for row, leaf in enumerate(leaves):
        for passed in _path(stretches, leaf):
            stretch, node = stretches[passed], nodes[passed]
            predictor_BT[row, stretch.start + 1 : stretch.end + 1] = torch.arange(node.start, node.end)
    return TokenTree(torch.tensor(ids), torch.tensor(positions), predictor_BT, tuple(nodes))


def trial_sequences(tokens: Callable[[int], list[int]]) -> list[tuple[list[int], list[int]]]:
    """Two groups with a common beginning, three sequences each of different length, of tokens that the caller draws:
    prompts and what follows them."""
    beginning = tokens(24)
    prompts = [[*beginning, *tokens(20)] for _ in range(2)]
    return [(prompt, tokens(length)) for prompt in prompts for length in (9, 2, 17)]


def _stretches(rows: Sequence[list[int]], worth: int) -> tuple[list[_Stretch], list[int]]:
    """The nodes, each before all below it, and the one in which each row ends."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    common = [0] + [common_beginning(rows[a], rows[b]) for a, b in pairwise(order)]
    stretches: list[_Stretch] = []
    leaves = [-1] * len(rows)
    # A range of the order, whose rows agree up to `start` at least, and the node that ends there.
    ranges = [(0, len(rows), 0, -1)]
    while ranges:
        low, high, start, parent = ranges.pop()
        row = order[low]
        shared = len(rows[row]) if high - low == 1 else min(common[low + 1 : high])
        alone = high - low == 1
        if shared > start and (alone or (high - low - 1) * (shared - start) >= worth):
            stretches.append(_Stretch(parent, row, start, shared))
            parent, start = len(stretches) - 1, shared
        if alone:
            leaves[row] = parent
            continue
        forks = [low, *(index for index in range(low + 1, high) if common[index] == shared), high]
        ranges += [(one, other, start, parent) for one, other in pairwise(forks)]
    return stretches, leaves


def _path(stretches: Sequence[_Stretch], number: int) -> Iterator[int]:
    """A stretch, its parent, and so on."""
    while number >= 0:
        yield number
        number = stretches[number].parent


def _places(stretches: Sequence[_Stretch]) -> list[Node]:
    """Where each stretch stands in the row."""
    starts = [0, *accumulate(it.end - it.start for it in stretches)]
    untils = starts[1:]
    depths = [0] * len(stretches)
    for number, it in enumerate(stretches):
        if it.parent >= 0:
            depths[number] = depths[it.parent] + 1
    for number in reversed(range(len(stretches))):
        parent = stretches[number].parent
        if parent >= 0:
            untils[parent] = max(untils[parent], untils[number])
    return [Node(*it) for it in zip(starts, starts[1:], untils, depths, strict=False)]
