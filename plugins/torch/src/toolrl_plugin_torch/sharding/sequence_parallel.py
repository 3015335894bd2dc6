"""Sequence parallelism (DeepSpeed-Ulysses, arXiv 2309.14509): the ranks of a group compute one row of tokens together.

Each rank holds an equal share of the row, padded at its end, and computes all layers on it. Attention alone needs the
whole row: an all-to-all before it turns [share of the row, all heads] into [whole row, share of the heads], and another
one turns its output back. Keys and values with fewer heads than ranks are repeated, as DeepSpeed and verl do.

All ranks of a group work out the loss of the whole micro-batch from log-probabilities that they sum up, and each goes
backward through those of its own tokens. So a sum of gradients over all ranks counts each token once, as it does for
ranks with samples of their own, and no loss is scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import all_to_all_single
from torch.nn.functional import pad

from toolrl.errors import ConfigError

if TYPE_CHECKING:
    from toolrl_plugin_torch.sharding.process_group import ProcessGroup


def check_sequence_parallel(config: Any, ranks: int) -> None:
    """Reject, before a model is loaded, what sequence parallelism over so many ranks doesn't support. Raises
    ConfigError."""
    size = config.trainer.sequence_parallel
    if ranks % size:
        raise ConfigError(
            f"trainer.sequence_parallel: {size} doesn't divide the number of ranks, {ranks}",
            hint=f"Start a multiple of {size} ranks (torchrun --nproc-per-node, cluster.trainer_workers), or set it to "
            "a divisor.",
        )
    if size > 1 and config.algorithm.baseline == "critic" and config.algorithm.advantage is None:
        raise ConfigError(
            "trainer.sequence_parallel: a critic computes whole sequences only",
            hint="Set it to 1, or take another algorithm.baseline.",
        )


class SequenceGroup:
    """This rank among the `size` neighbouring ranks that compute the same micro-batches. All of them call each method
    together, except `holds` and `cut`."""

    def __init__(self, ranks: ProcessGroup, size: int) -> None:
        self.size = size
        self.rank = ranks.rank % size
        self._ranks = ranks

    def holds(self, places_N: torch.Tensor, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of places in a row of so many tokens: which of them (indices) are in this rank's share, and where in it."""
        share = -(-tokens // self.size)
        own_N = (places_N // share == self.rank).nonzero().squeeze(1)
        return own_N, places_N[own_N] - self.rank * share

    def cut(self, row_N: torch.Tensor) -> torch.Tensor:
        """This rank's share of a row, which zeros fill up."""
        share = -(-len(row_N) // self.size)
        own_S = row_N[self.rank * share : (self.rank + 1) * share]
        return pad(own_S, (0, share - len(own_S)))

    def split_heads(self, share: Sequence[torch.Tensor], tokens: int) -> list[torch.Tensor]:
        """`[tokens, a share of the heads, D]` of query, key and value from `[share of the row, heads, D]`. The number
        of query heads must be a multiple of the number of ranks."""
        parts, shapes = [], []
        for x_SHD in share:
            if x_SHD.shape[1] % self.size:
                x_SHD = x_SHD.repeat_interleave(self.size // gcd(x_SHD.shape[1], self.size), dim=1)
            x_SPF = x_SHD.unflatten(1, (self.size, -1)).flatten(2)
            shapes.append((x_SHD.shape[1] // self.size, x_SHD.shape[2]))
            parts.append(x_SPF.transpose(0, 1))
        row_NF = self._exchange(torch.cat(parts, dim=2)).flatten(0, 1)[:tokens]
        split = row_NF.split([heads * dim for heads, dim in shapes], dim=1)
        return [x_NF.unflatten(1, shape) for x_NF, shape in zip(split, shapes, strict=True)]

    def join_heads(self, row_NHD: torch.Tensor, share: int) -> torch.Tensor:
        """`[share of the row, all heads, D]` from `[tokens, a share of the heads, D]`."""
        padded = pad(row_NHD, (0, 0, 0, 0, 0, share * self.size - len(row_NHD)))
        return self._exchange(padded.unflatten(0, (self.size, -1))).transpose(0, 1).flatten(1, 2)

    def total(self, values: torch.Tensor) -> torch.Tensor:
        """The sum over the ranks of values that are 0 on all of them but one, with the gradient of this rank's."""
        whole = values.detach().clone()
        dist.all_reduce(whole, group=self._ranks.neighbours(self.size))
        return values + (whole - values.detach())  # Exact: one of the two is 0.

    def _exchange(self, parts: torch.Tensor) -> torch.Tensor:
        """Send part i to rank i; gives what the ranks sent here, in their order."""
        parts = parts.contiguous()
        group = self._ranks.neighbours(self.size)
        received: torch.Tensor = all_to_all_single(torch.empty_like(parts), parts, group=group)
        return received
