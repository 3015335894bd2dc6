"""Keys and values of the rows that decode, in one block a layer, and the view of it that transformers' models write
to. Blocks grow one layer at a time, so that only one layer is held twice.

A row of the block is a slot. The rows that decode are always the first ones, so that a step works on views and
gathers nothing. What a waiting episode has computed is taken out of its slot into tensors of its own (`save`) and
put back (`load`) when its next turn begins: one copy each, far cheaper than a step of decoding.

Shapes: keys of a layer `[slots, heads, columns + 1, key_dim]`, values likewise. The last column is waste: padding
writes there and nothing reads it. It also keeps rows from starting at multiples of a memory page, which costs a
third of the speed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers.cache_utils import Cache

COLUMN_STEP = 64
"""Columns are added in multiples of this."""
SHARE = 0.25
"""Of the memory that the cache takes where the options don't say; the rest is the model's, the optimizer's and the
activations'."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a model stores for each token."""

    layers: int
    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device
    routes: int = 0
    """Experts of a token that are recorded, over all layers."""
    routes_dtype: torch.dtype = torch.uint8

    @property
    def bytes_per_token(self) -> int:
        state = self.layers * self.heads * (self.key_dim + self.value_dim) * self.dtype.itemsize
        return int(state + self.routes * self.routes_dtype.itemsize)


class Saved(NamedTuple):
    """What was computed for some tokens, out of its slot."""

    keys: Tensor
    """`[layers, heads, tokens, dim]`."""
    values: Tensor
    routes: Tensor
    """`[1, tokens, routes]`."""


def default_cache_tokens(shape: CacheShape) -> int:
    """A quarter of the device's memory, of what is free on a CPU, in tokens."""
    if shape.device.type == "cuda":
        total = torch.cuda.get_device_properties(shape.device).total_memory
    else:
        total = available_memory()
    return max(1024, int(total * SHARE) // shape.bytes_per_token)


def available_memory() -> int:
    """Bytes of main memory that a process can still get, a container's limit respected."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        found.append(int(text))
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        if "MemAvailable" in fields:
            found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    return min(found)


class SlotCache:
    """The block of slots. Grows on demand in both directions; gives columns back only where the budget asks for it."""

    def __init__(self, shape: CacheShape, budget: int) -> None:
        self.shape = shape
        self.budget = budget
        """Slots times columns at most; only a single row may need more than it leaves."""
        self.free()

    def free(self) -> None:
        """Give the memory back. Contents are lost."""
        self.slots = 0
        self.columns = 0
        self.keys, self.values = ([self._block(0, 0, dim) for _ in range(self.shape.layers)] for dim in self._dims)
        self._routes = self._routes_block(0, 0)
        self._row_starts = torch.zeros(0, dtype=torch.long, device=self.shape.device)

    def _routes_block(self, slots: int, columns: int) -> Tensor:
        shape = (slots, 1, columns + 1, self.shape.routes)
        return torch.zeros(shape, dtype=self.shape.routes_dtype, device=self.shape.device)

    @property
    def _blocks(self) -> Iterator[Tensor]:
        """All, `[slots, …, columns + 1, …]` each."""
        yield from (*self.keys, *self.values, *([self._routes] if self.shape.routes else []))

    @property
    def _dims(self) -> tuple[int, int]:
        return self.shape.key_dim, self.shape.value_dim

    def _block(self, slots: int, columns: int, dim: int) -> Tensor:
        # Zeros and not empty memory: a masked column still enters a product, and 0 · NaN is NaN.
        shape = (slots, self.shape.heads, columns + 1, dim)
        return torch.zeros(shape, dtype=self.shape.dtype, device=self.shape.device)

    def size_for(self, slots: int, columns: int) -> tuple[int, int]:
        """Slots and columns that `reserve` with these arguments ends with: some to spare where the budget has them."""
        slots = max(slots, self.slots)
        spare = max(slots, min(2 * self.slots, slots + 32)) if slots > self.slots else slots
        rounded = max(self.columns, _round_up(columns))
        # By a quarter at a time, so that all the copies together cost a few times the last one, however long rows get.
        ample = rounded if rounded == self.columns else max(rounded, _round_up(self.columns * 5 // 4))
        for wanted in ((spare, ample), (spare, rounded), (slots, rounded), (slots, max(columns, self.columns))):
            if wanted[0] * wanted[1] <= self.budget:
                return wanted
        return slots, columns

    def reserve(self, slots: int, columns: int, *, used: int) -> None:
        """Make room for `slots` rows of `columns` tokens; the first `used` slots keep their contents."""
        new_slots, new_columns = self.size_for(slots, columns)
        if (new_slots, new_columns) == (self.slots, self.columns):
            return
        kept = min(self.columns, new_columns)
        for blocks, dim in zip((self.keys, self.values), self._dims, strict=True):
            for layer in range(self.shape.layers):
                old = blocks[layer][:used, :, :kept]
                blocks[layer] = self._block(new_slots, new_columns, dim)
                blocks[layer][:used, :, :kept] = old
        routes = self._routes[:used, :, :kept]
        self._routes = self._routes_block(new_slots, new_columns)
        self._routes[:used, :, :kept] = routes
        self.slots, self.columns = new_slots, new_columns
        heads = self.shape.heads
        starts = torch.arange(new_slots * heads, device=self.shape.device) * (new_columns + 1)
        self._row_starts = starts.view(new_slots, heads)

    def write_index(self, first: int, columns_BT: Tensor, *, heads_last: bool = False) -> Tensor:
        """Where the keys of slots `first …` go, as rows of a layer seen as `[-1, dim]`.

        The keys are `[B, heads, T, dim]`, or `[B, T, heads, dim]` with `heads_last`.
        """
        starts = self._row_starts[first : first + columns_BT.shape[0]]
        if heads_last:
            return (starts[:, None, :] + columns_BT[:, :, None]).reshape(-1)
        return (starts[:, :, None] + columns_BT[:, None, :]).reshape(-1)

    def write_routes(self, first: int, columns_BT: Tensor, routes: Sequence[Tensor]) -> None:
        """Put the experts of new tokens, `[B · T, K]` of each layer, to the columns of the slots `first …`."""
        rows_B = torch.arange(first, first + columns_BT.shape[0], device=columns_BT.device)
        index = (rows_B[:, None] * (self.columns + 1) + columns_BT).reshape(-1)
        self._routes.view(-1, self.shape.routes).index_copy_(0, index, torch.cat(list(routes), -1).to(self._routes))

    def routes_of(self, slot: int, length: int) -> bytes:
        """The experts of a slot's first `length` tokens, layer by layer for each token; empty where it has none."""
        return self._routes[slot, 0, :length].cpu().numpy().tobytes() if self.shape.routes else b""

    def save(self, slot: int, length: int) -> Saved:
        """A copy of the first `length` tokens of a slot."""
        keys, values = (torch.stack([block[slot, :, :length] for block in of]) for of in (self.keys, self.values))
        return Saved(keys, values, self._routes[slot, :, :length].clone())

    def load(self, slot: int, saved: Saved, length: int) -> None:
        """Put the first `length` saved tokens into a slot."""
        for block, part in zip((*self.keys, *self.values, self._routes), (*saved[0], *saved[1], saved[2]), strict=True):
            block[slot, :, :length] = part[:, :length]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` tokens of one slot to another."""
        for block in self._blocks:
            block[target, :, :length] = block[source, :, :length]

    def spread(self, sources: list[int], first: int, length: int) -> None:
        """Copy slots to the slots `first …`, in order."""
        # A source at a time, for all that follow it: nothing is gathered in between, which would be copied twice.
        for source, run in groupby(range(len(sources)), sources.__getitem__):
            places = [first + index for index in run]
            target = slice(places[0], places[-1] + 1)
            for block in self._blocks:
                block[target, :, :length] = block[source : source + 1, :, :length]

    def wipe(self, slot: int) -> None:
        """Zero a slot, so that what isn't finite in it can't reach the next row that uses it."""
        for block in self._blocks:
            block[slot] = 0


def _round_up(columns: int) -> int:
    return -(-columns // COLUMN_STEP) * COLUMN_STEP


class StepCache(Cache):  # type: ignore[misc]  # transformers' classes are untyped
    """What a model sees of a `SlotCache` during one forward pass: slots `first …`, columns `0 … length`."""

    def __init__(self, slots: SlotCache, first: int, rows: int, length: int, write_index: Tensor) -> None:
        super().__init__(layers=[])
        self._slots = slots
        self._rows = slice(first, first + rows)
        self._length = length
        self._index = write_index

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the new tokens `[B, heads, T, dim]`; all tokens of these rows `[B, heads, length, dim]`."""
        keys, values = self._slots.keys[layer_idx], self._slots.values[layer_idx]
        keys.view(-1, keys.shape[-1]).index_copy_(0, self._index, key_states.reshape(-1, key_states.shape[-1]))
        values.view(-1, values.shape[-1]).index_copy_(0, self._index, value_states.reshape(-1, value_states.shape[-1]))
        return keys[self._rows, :, : self._length], values[self._rows, :, : self._length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns in view; positions and masks are always given, so no model has to derive them from this."""
        return self._length

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._length, 0
