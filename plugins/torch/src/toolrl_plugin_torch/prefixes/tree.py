"""Token trees: sequences with common beginnings as one row, in which each beginning stands once.

The episodes of a group have their prompt in common, those of one environment the system prompt with the tools, and a
policy that has become sure of itself starts its answers alike. What several sequences share is computed once for all of
them: in a causal model a token's hidden state depends on the tokens before it only, and gradients add up by themselves.

Sequences in lexicographic order have equal beginnings side by side, and what neighbours have in common gives the tree.
A node holds the tokens of one stretch between two forks; a sequence is the path from a root to where it ends. A fork is
made only where it saves `WORTH_SHARING` tokens: below that another stretch of attention costs more than the tokens.

The row holds the nodes in the order of their depth, the children of one node side by side, so that attention can treat
them together (`tree_attention`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch

WORTH_SHARING = 32
"""Tokens that sharing a stretch must save."""
_ALIKE = 2
"""Siblings that attend together are padded to the longest, which is at most so many times as long as the shortest."""


@dataclass(frozen=True, slots=True)
class Siblings:
    """Nodes with the same ancestors that attend together: in the row they stand one after another."""

    start: int
    """Place of the first token in the row."""
    lengths: tuple[int, ...]
    """Tokens of each, the longest first."""
    context: tuple[tuple[int, int, int], ...]
    """What all of them see beside themselves, the root first: number in the tree of the siblings that hold an ancestor,
    and where its tokens start and end among theirs."""
    padded_N: torch.Tensor | None
    """Of lengths that differ: which token stands at each place of the padded siblings, counted from `start`. Padding
    repeats a sibling's last token."""
    unpadded_N: torch.Tensor | None
    """And where each token stands among those places."""

    @property
    def end(self) -> int:
        return self.start + sum(self.lengths)

    @property
    def longest(self) -> int:
        return self.lengths[0]

    @property
    def seen(self) -> int:
        """Tokens of the context."""
        return sum(end - start for _, start, end in self.context)


@dataclass(frozen=True)
class TokenTree:
    """One row of N tokens for B sequences, the longest of which has T."""

    input_ids_N: torch.Tensor
    """int64."""
    position_ids_N: torch.Tensor
    """int64: each token's place in its sequences."""
    predictor_BT: torch.Tensor
    """int64: the place in the row whose hidden state predicts token t of sequence b; 0 for t = 0 and padding."""
    siblings: tuple[Siblings, ...]
    """In the order of the row, which they cover whole."""
    masks: dict[tuple[int, ...], torch.Tensor] = field(default_factory=dict, repr=False, compare=False)
    """Attention masks that layers have in common, made when first needed."""

    @property
    def positions(self) -> int:
        """What a forward pass costs: N."""
        return int(self.input_ids_N.numel())

    def to(self, device: torch.device | str) -> TokenTree:
        """The same on a device."""
        moved = self.input_ids_N.to(device, non_blocking=True)
        # Devices compare by their number too, and `cuda` has none, so tensors are compared.
        if moved is self.input_ids_N:
            return self

        def move(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        siblings = tuple(
            replace(part, padded_N=move(part.padded_N), unpadded_N=move(part.unpadded_N)) for part in self.siblings
        )
        positions, predictor = (
            tensor.to(device, non_blocking=True) for tensor in (self.position_ids_N, self.predictor_BT)
        )
        return TokenTree(moved, positions, predictor, siblings)


@dataclass(frozen=True, slots=True)
class _Node:
    """Tokens `start … end` of a sequence, and of all others that pass through."""

    parent: int
    row: int
    start: int
    end: int


def common_beginning(first: Sequence[int], second: Sequence[int], limit: int | None = None) -> int:
    """How many tokens two sequences have in common at the start, at most `limit`."""
    low, high = 0, min(len(first), len(second)) if limit is None else limit
    if first[:high] == second[:high]:
        return high
    while high - low > 1:  # first[:low] is common, first[:high] isn't
        middle = (low + high) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle
    return low


def grow(sequences: Sequence[Sequence[int]], *, worth: int = WORTH_SHARING) -> TokenTree:
    """The tree of some sequences of two tokens or more.

    The last token of each isn't in it: nothing is predicted from it.
    """
    if not sequences or min(map(len, sequences)) < 2:
        raise ValueError("a tree needs sequences, and each at least two tokens: the first can't be predicted")
    rows = [list(sequence[:-1]) for sequence in sequences]
    nodes, leaves = _nodes(rows, worth)
    siblings, places = _arrange(nodes)
    total = siblings[-1].end
    ids, positions = [0] * total, [0] * total
    for node, place in zip(nodes, places, strict=True):
        ids[place : place + node.end - node.start] = rows[node.row][node.start : node.end]
        positions[place : place + node.end - node.start] = range(node.start, node.end)
    predictor_BT = torch.zeros((len(rows), max(map(len, sequences))), dtype=torch.int64)
    for row, leaf in enumerate(leaves):
        for passed in _ancestors(nodes, leaf):
            start, end = nodes[passed].start, nodes[passed].end
            predictor_BT[row, start + 1 : end + 1] = torch.arange(places[passed], places[passed] + end - start)
    return TokenTree(torch.tensor(ids), torch.tensor(positions), predictor_BT, tuple(siblings))


def _nodes(rows: Sequence[list[int]], worth: int) -> tuple[list[_Node], list[int]]:
    """The nodes, parents before children, and the one in which each row ends."""
    order = sorted(range(len(rows)), key=rows.__getitem__)
    common = [0] + [common_beginning(rows[a], rows[b]) for a, b in pairwise(order)]
    nodes: list[_Node] = []
    leaves = [-1] * len(rows)
    # A range of the order, whose rows agree up to `start` at least, and the node that ends there.
    ranges = [(0, len(rows), 0, -1)]
    while ranges:
        low, high, start, parent = ranges.pop()
        row = order[low]
        shared = len(rows[row]) if high - low == 1 else min(common[low + 1 : high])
        alone = high - low == 1
        if shared > start and (alone or (high - low - 1) * (shared - start) >= worth):
            nodes.append(_Node(parent, row, start, shared))
            parent, start = len(nodes) - 1, shared
        if alone:
            leaves[row] = parent
            continue
        forks = [low, *(index for index in range(low + 1, high) if common[index] == shared), high]
        ranges += [(one, other, start, parent) for one, other in pairwise(forks)]
    return nodes, leaves


def _ancestors(nodes: Sequence[_Node], node: int) -> Iterator[int]:
    """A node, its parent, and so on."""
    while node >= 0:
        yield node
        node = nodes[node].parent


def _arrange(nodes: Sequence[_Node]) -> tuple[list[Siblings], list[int]]:
    """Siblings in the order of the row, and where each node starts in it."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(nodes):
        children.setdefault(node.parent, []).append(number)
    places = [0] * len(nodes)
    held = [(0, 0, 0)] * len(nodes)
    """By node: the number of its siblings, and where it starts and ends among their tokens."""
    siblings: list[Siblings] = []
    parents, place = deque([-1]), 0
    while parents:
        parent = parents.popleft()
        context = tuple(held[node] for node in _ancestors(nodes, parent))[::-1]
        for together in _alike([(nodes[n].end - nodes[n].start, n) for n in children.get(parent, ())]):
            first = place
            for length, child in together:
                places[child] = place
                held[child] = (len(siblings), place - first, place - first + length)
                place += length
                parents.append(child)
            siblings.append(_siblings(first, tuple(length for length, _ in together), context))
    return siblings, places


def _alike(lengths: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """(length, number) by length, the longest first, in parts of like length."""
    together: list[tuple[int, int]] = []
    for item in sorted(lengths, key=lambda item: (-item[0], item[1])):
        if together and together[0][0] > _ALIKE * item[0]:
            yield together
            together = []
        together.append(item)
    if together:
        yield together


def _siblings(start: int, lengths: tuple[int, ...], context: tuple[tuple[int, int, int], ...]) -> Siblings:
    if lengths[0] == lengths[-1]:
        return Siblings(start, lengths, context, None, None)
    column_L = torch.arange(lengths[0])
    lengths_S1 = torch.tensor(lengths)[:, None]
    starts_S1 = lengths_S1.cumsum(0) - lengths_S1
    padded_SL = starts_S1 + torch.minimum(column_L, lengths_S1 - 1)
    unpadded_N = (column_L < lengths_S1).reshape(-1).nonzero().squeeze(1)
    return Siblings(start, lengths, context, padded_SL.reshape(-1), unpadded_N)
