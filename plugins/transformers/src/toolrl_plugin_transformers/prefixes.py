"""What rows that decode have in common at the start: all of them, and groups of them beyond that.

The episodes of a group have their prompt in common, and those of one environment the system prompt with the tools.
Decoding is bound by what it reads, so keys and values that rows have in common are read once for all of them: up to
`shared` once in a step, from there up to `common` once for each group. Every row still holds all of its own in its
slot; here are copies of what groups have in common, made when the groups change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from toolrl_plugin_torch.prefixes.tree import common_beginning
from toolrl_plugin_transformers.cache import SlotCache

READ_ONCE = 64
"""Tokens that all decoding rows must have in common to be read once for all of them."""
WORTH_GROUPING = 1024
"""Tokens, added up over rows, that needn't be read in a step: for fewer the extra calls cost more than they save."""
_PADDING = 2
"""Groups are padded to the largest one, up to so many times the number of rows: beyond that the padding takes longer to
compute than it saves reading."""
_MEMBERS = 2
"""Rows to a group, on average: with fewer, most is copied and read as before, and in more calls."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """Which rows have the tokens from `shared` to `common` in common."""

    shared: int
    """Tokens at the start that all rows have in common."""
    common: int
    """Tokens at the start that the rows of each group have in common."""
    members: tuple[tuple[int, ...], ...]
    """Rows of each group."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """A grouping with the keys and values that it saves reading. F groups, padded to M members each."""

    shared: int
    common: int
    groups: int
    rows_FM: Tensor
    """int64, flat: the rows by group; padding repeats a group's first."""
    places_B: Tensor
    """int64: where each row stands in `rows_FM`."""
    keys: Tensor
    """`[layers, heads · F, common − shared, dim]`."""
    values: Tensor
    """The same of the values."""


def group(rows: Sequence[list[int]], shared: int) -> Grouping | None:
    """Put rows of tokens into groups; None where that doesn't pay.

    The last token of each row is left out: it isn't computed yet. All groups have `common` tokens in common, so many
    that the most is saved: in lexicographic order each pair of neighbours that agree up to there saves that part.
    """
    if len(rows) < 2:
        return None
    fewest = len(rows) - len(rows) // _MEMBERS  # Pairs of neighbours that have to agree, so that groups are few.
    limit = min(map(len, rows)) - 1
    order = sorted(range(len(rows)), key=lambda row: rows[row][shared:])
    alike = [common_beginning(rows[one], rows[other], limit) for one, other in pairwise(order)]
    lengths = sorted(alike, reverse=True)[fewest - 1 :]
    saved, common = max((count * (length - shared), length) for count, length in enumerate(lengths, fewest))
    if saved < WORTH_GROUPING:
        return None
    members = [[order[0]]]
    for row, length in zip(order[1:], alike, strict=True):
        if length < common:
            members.append([])
        members[-1].append(row)
    if len(members) * max(map(len, members)) > _PADDING * len(rows):
        return None
    return Grouping(shared, common, tuple(map(tuple, members)))


def _seats(grouping: Grouping, device: torch.device) -> tuple[Tensor, Tensor]:
    """`rows_FM` and `places_B` of these groups."""
    widest = max(map(len, grouping.members))
    rows = [row for group in grouping.members for row in (*group, *[group[0]] * (widest - len(group)))]
    places = {row: place for place, row in reversed(list(enumerate(rows)))}
    return (
        torch.tensor(rows, device=device),
        torch.tensor([places[row] for row in range(len(places))], device=device),
    )


def seated(prefixes: Prefixes, grouping: Grouping) -> Prefixes:
    """The same beginnings for other rows: `grouping` has as many groups, in the same order."""
    rows_FM, places_B = _seats(grouping, prefixes.keys.device)
    return replace(prefixes, rows_FM=rows_FM, places_B=places_B)


def read(slots: SlotCache, grouping: Grouping) -> Prefixes:
    """Copy what the groups have in common out of the slot of each one's first row."""
    device = slots.shape.device
    first = torch.tensor([group[0] for group in grouping.members], device=device)
    part = slice(grouping.shared, grouping.common)
    # Heads before groups, so that the queries of one head are side by side for what all rows have in common.
    keys, values = (
        block[:, :, :, part].index_select(1, first).transpose(1, 2).flatten(1, 2).contiguous()
        for block in (slots.keys, slots.values)
    )
    return Prefixes(
        grouping.shared,
        grouping.common,
        len(grouping.members),
        *_seats(grouping, device),
        keys,
        values,
    )


class CommonReads:
    """What a step of decoding reads once for all rows (the first `shared` tokens), and once for groups of them."""

    def __init__(self) -> None:
        self.shared = 0
        self.prefixes: Prefixes | None = None
        self._beginnings: list[list[int]] = []
        """The tokens of each group in `prefixes`: rows come and go, and mostly the groups stay."""

    def forget(self) -> None:
        """Free the copies."""
        self.prefixes = None

    def renew(self, rows: Sequence[list[int]], slots: SlotCache, *, grouped: bool) -> None:
        """After rows came or left. Their last tokens aren't computed yet. With `grouped` the model reads groups."""
        self.shared = _in_common(rows)
        grouping = group(rows, self.shared) if grouped else None
        if grouping is None:
            self.prefixes = None
            return
        shared, common, held = grouping.shared, grouping.common, self.prefixes
        beginnings = [rows[members[0]][:common] for members in grouping.members]
        known, self._beginnings = self._beginnings, beginnings
        if held is not None and (held.shared, held.common) == (shared, common) and known == beginnings:
            self.prefixes = seated(held, grouping)
            return
        self.prefixes = held = None  # Its memory can go before the next is made.
        self.prefixes = read(slots, grouping)


def _in_common(rows: Sequence[list[int]]) -> int:
    """Tokens at the start that all rows have in common, their last ones left out; 0 where they are few."""
    if len(rows) < 2:
        return 0
    shared = min(map(len, rows)) - 1
    for row in rows[1:]:
        if shared < READ_ONCE:
            return 0
        shared = common_beginning(rows[0], row, shared)
    return shared if shared >= READ_ONCE else 0


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, prefixes: Prefixes, layer: int) -> Tensor:
    """One scaled query a head `[B, H, G, D]`, keys and values `[B, H, L, D]`, mask `[B, 1, 1, L]`; gives what the query
    has. Of the first `common` keys only those in row 0 and in `prefixes` are read."""
    batch, heads, group = query.shape[:3]
    shared, common, groups = prefixes.shared, prefixes.common, prefixes.groups

    def by_head(x: Tensor) -> Tensor:
        """`[B, H, G, …]` to `[H, F · M · G, …]`."""
        return x.transpose(0, 1).index_select(1, prefixes.rows_FM).flatten(1, 2)

    def by_row(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, group)).index_select(1, prefixes.places_B).transpose(0, 1)

    def by_group(x: Tensor) -> Tensor:
        """`[H, F · M · G, …]` to `[H · F, M · G, …]`."""
        return x.unflatten(1, (groups, -1)).flatten(0, 1)

    queries = by_head(query)
    of_group = torch.bmm(by_group(queries), prefixes.keys[layer].transpose(1, 2))
    of_group = of_group.unflatten(0, (heads, groups)).flatten(1, 2)
    if shared:
        of_all = torch.bmm(queries, key[0, :, :shared].transpose(1, 2))
        of_group = torch.cat((of_all, of_group), dim=-1)
    own = torch.bmm(query.flatten(0, 1), key[:, :, common:].flatten(0, 1).transpose(1, 2))
    own = own.unflatten(0, (batch, heads)) + mask[..., common:]
    weights = torch.cat((by_row(of_group), own), dim=-1).softmax(-1)
    before = by_head(weights[..., :common])
    mixed = torch.bmm(by_group(before[..., shared:]), prefixes.values[layer])
    mixed = mixed.unflatten(0, (heads, groups)).flatten(1, 2)
    if shared:
        mixed.baddbmm_(before[..., :shared], value[0, :, :shared])
    own_value = value[:, :, common:].flatten(0, 1)
    return torch.baddbmm(by_row(mixed).flatten(0, 1), weights[..., common:].flatten(0, 1), own_value).view_as(query)
