"""Divides a step's samples: among its updates, and those of each update among the ranks.

Where common beginnings are computed once and there are enough groups, whole groups stay together; else single samples
are divided. The parts have nearly equal numbers of tokens. Each update is averaged by itself, so where the loss is
averaged over sequences the parts have equal numbers of these too: alone in its update, a long sequence would weigh as
much as all the short ones of another. The result depends on the arguments alone, so ranks that hold the same samples
agree on the shares without an exchange.

With sharded weights all ranks make each forward and backward pass together. A rank with fewer micro-batches than
another adds empty ones: a short sequence with no weight in the loss.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from toolrl_plugin_torch.batch import MicroBatch, split


def balance(
    groups: Sequence[Hashable], costs: Sequence[int], parts: int, *, together: bool, even: bool = False
) -> list[list[int]]:
    """Positions of samples in at most `parts` lists of nearly equal cost. `groups` says which group each belongs to;
    with `together` those of one stay together where there are as many groups as parts; with `even` all lists get as
    many samples, or groups, or one more."""
    members: dict[Hashable, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    if not together or len(members) < parts:
        return split(costs, parts, even=even)
    whole = list(members.values())
    dealt = split([sum(costs[position] for position in positions) for positions in whole], parts, even=even)
    return [[position for group in part for position in whole[group]] for part in dealt]


def rank_share(rank: int, ranks: int, groups: Sequence[Hashable], costs: Sequence[int], *, together: bool) -> list[int]:
    """The positions of one rank's samples, which may be none."""
    parts = balance(groups, costs, ranks, together=together)
    return parts[rank] if rank < len(parts) else []


def empty_batch(pad_id: int) -> MicroBatch:
    """A micro-batch of no sample: two tokens, of which the second is scored so that every weight is used."""
    nothing_BT = torch.zeros((1, 2))
    return MicroBatch(
        input_ids_BT=torch.full((1, 2), pad_id, dtype=torch.int64),
        attention_mask_BT=torch.ones((1, 2), dtype=torch.int64),
        loss_mask_BT=torch.tensor([[False, True]]),
        rollout_logprobs_BT=nothing_BT,
        advantages_BT=nothing_BT,
        samples=(),
    )


def pad_passes(batches: Sequence[MicroBatch], passes: int, pad_id: int) -> list[MicroBatch]:
    """The batches and as many empty ones as there are passes more."""
    return [*batches, *(empty_batch(pad_id) for _ in range(passes - len(batches)))]
