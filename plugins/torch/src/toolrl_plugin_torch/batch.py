"""Batches: episodes and demonstrations as padded tensors under a token budget.

Sequences are sorted by length and cut into micro-batches of neighbours, so that little is padding; a micro-batch holds
at most `budget` positions, padding included, except where one sequence alone is longer. The order depends on lengths
and positions only. Padding stands on the right, so that every token has the position it had when it was sampled and no
token sees padding.

All tensors of a micro-batch are aligned with the tokens: entry t of the loss mask, the log-probabilities and the
advantages belongs to token t, which the model predicts at position t − 1. Token 0 is never predicted.

Where beginnings are shared, sequences with a common beginning stand together instead, and a micro-batch has a tree of
tokens beside the padded rows (see `tree.py`); the budget is one of the tree's tokens then. Sequences with images are
always padded.

What follows the last trained token of a sequence (a tool's answer that the model didn't get to read) has no influence
on the loss and is cut off.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise

import torch

from toolrl.types import Episode, MediaInput, common_beginning
from toolrl_plugin_torch.objective.credit import Credit, token_advantages
from toolrl_plugin_torch.prefixes.tree import WORTH_SHARING, TokenTree, grow
from toolrl_plugin_torch.routes import Routers
from toolrl_plugin_torch.sampling_masks import Kept, decode


@dataclass(frozen=True, slots=True)
class Sample:
    """One sequence to train on. All fields with a value for each token have the same length."""

    ids: Sequence[int]
    loss_mask: Sequence[int]
    """1 exactly on the tokens to train on; 0 on the first."""
    logprobs: Sequence[float]
    """The engine's on sampled tokens, 0.0 elsewhere."""
    advantages: Sequence[float]
    """0.0 where the mask is 0."""
    media: Sequence[MediaInput] = ()
    """The images among the ids, in order; their spans are places in `ids`."""
    routes: torch.Tensor | None = None
    """Experts of each token that another is predicted from, int16 `[tokens, L, K]`; None for the router's own."""
    episode_tokens: int | None = None
    """Trained tokens of all sequences of its episode; None where this is the only one."""
    kept: Kept | None = None
    """The ids that the trained tokens were drawn from; None for all."""
    teacher_logprobs: Sequence[float] | None = None
    """Of each token under a teacher; None where none scored the sequence."""
    versions: Sequence[int] = ()
    """Versions of the weights that sampled the trained tokens, −1 on others; empty if unknown."""

    @property
    def trained_tokens(self) -> int:
        return sum(self.loss_mask)


@dataclass(frozen=True)
class MicroBatch:
    """Sequences of one forward pass. B sequences, T positions."""

    input_ids_BT: torch.Tensor
    """int64; padding holds the pad id."""
    attention_mask_BT: torch.Tensor
    """int64, 1 on tokens and 0 on padding."""
    loss_mask_BT: torch.Tensor
    """bool, True exactly on trained tokens."""
    rollout_logprobs_BT: torch.Tensor
    """float32, the engine's log-probabilities on trained tokens, 0 elsewhere."""
    advantages_BT: torch.Tensor
    """float32, 0 where the loss mask is False."""
    episode_tokens_B: torch.Tensor
    """float32, trained tokens of all sequences of a row's episode."""
    samples: tuple[int, ...]
    """Which sample each row is, as a position in the list that was packed."""
    media: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """More arguments of the model, for images: by name; those with a number for each token are `[B, T]`."""
    tree: TokenTree | None = None
    """The rows with what they have in common once, which is computed in their place."""
    routes_NLK: torch.Tensor | None = None
    """int16, on the CPU: the experts of each position that is computed, −1 for the router's own choice."""
    kept: Kept | None = None
    """The ids that the trained tokens were drawn from, row by row; None for all."""
    teacher_logprobs_BT: torch.Tensor | None = None
    """float32, the teachers' log-probabilities on trained tokens, NaN in rows that none scored; None without any."""
    versions_BT: torch.Tensor | None = None
    """int32, versions of the weights that sampled trained tokens; None if a row's are unknown."""

    @property
    def positions(self) -> int:
        """What a forward pass costs: B · T, or the tokens of the tree."""
        return int(self.input_ids_BT.numel()) if self.tree is None else self.tree.positions

    def to(self, device: torch.device | str) -> MicroBatch:
        """The same on a device."""
        tensors = {part.name: getattr(self, part.name) for part in fields(self) if part.name != "routes_NLK"}
        moved = {
            name: value.to(device, non_blocking=True)
            for name, value in tensors.items()
            if isinstance(value, torch.Tensor)
        }
        media = {name: value.to(device, non_blocking=True) for name, value in self.media.items()}
        tree = None if self.tree is None else self.tree.to(device)
        return replace(self, **moved, media=media, tree=tree)


def episode_samples(episode: Episode, advantage: Credit, routers: Routers | None = None) -> list[Sample]:
    """The trained trajectories of an episode, with its advantage on each sampled token, and with `routers` with the
    routes that its engine recorded. Raises EngineError where those are missing."""
    trained = [it for it in episode.trajectories if it.trained]
    tokens = sum(sum(it.loss_mask) for it in trained)
    samples = []
    for it in trained:
        sample = Sample(
            it.ids, it.loss_mask, it.logprobs, token_advantages(it, advantage), it.media,
            episode_tokens=tokens, teacher_logprobs=it.teacher_logprobs,
            # An episode that a caller made may have none.
            versions=it.weight_versions if len(it.weight_versions) == len(it.ids) else (),
        )  # fmt: skip
        if it.sampling_masks:
            sampled = [token for token, bit in zip(it.ids, it.loss_mask, strict=True) if bit]
            sample = replace(sample, kept=decode(it.sampling_masks, sampled))
        length = _trained_length(sample)
        if routers is not None and length:
            sample = replace(sample, routes=routers.decode(it.routes or b"", length - 1))
        samples.append(sample)
    return samples


def supervised_sample(ids: Sequence[int], loss_mask: Sequence[int], media: Sequence[MediaInput] = ()) -> Sample:
    """A demonstration. Its log-probabilities are unknown (0) and its advantage is 1 on each trained token."""
    return Sample(ids, loss_mask, [0.0] * len(ids), [float(value) for value in loss_mask], media)


def pack(samples: Sequence[Sample], budget: int, *, pad_id: int = 0, share: bool = False) -> list[MicroBatch]:
    """Micro-batches that hold each sample with a trained token exactly once: padded ones, the longest first, or with
    `share` trees in lexicographic order, and padded ones of the samples with images after them.

    `budget` bounds the positions of each; a longer sequence gets a micro-batch of its own. `pad_id` may be any valid
    token id: padding is masked.
    """
    lengths = [_trained_length(sample) for sample in samples]
    order = sorted((index for index, length in enumerate(lengths) if length), key=lambda index: -lengths[index])
    batches: list[MicroBatch] = []
    if share:
        batches = _pack_trees(samples, [index for index in order if not samples[index].media], lengths, budget, pad_id)
        order = [index for index in order if samples[index].media]
    rows: list[int] = []
    for index in order:
        if rows and lengths[rows[0]] * (len(rows) + 1) > budget:
            batches.append(_pad(samples, rows, lengths, pad_id))
            rows = []
        rows.append(index)
    if rows:
        batches.append(_pad(samples, rows, lengths, pad_id))
    return batches


def _pack_trees(
    samples: Sequence[Sample], chosen: Sequence[int], lengths: Sequence[int], budget: int, pad_id: int
) -> list[MicroBatch]:
    """Neighbours in lexicographic order as long as their tree fits; what two micro-batches share is in both."""
    kept = {index: list(samples[index].ids[: lengths[index]]) for index in chosen}
    order = sorted(kept, key=lambda index: (kept[index], index))
    common = [0] + [common_beginning(kept[one], kept[two]) for one, two in pairwise(order)]
    common = [tokens if tokens >= WORTH_SHARING else 0 for tokens in common]
    batches: list[MicroBatch] = []
    start = 0
    while start < len(order):
        end, tokens = start + 1, len(kept[order[start]])
        while end < len(order) and tokens + len(kept[order[end]]) - common[end] <= budget:
            tokens += len(kept[order[end]]) - common[end]
            end += 1
        tree = grow([kept[index] for index in order[start:end]])
        while tree.positions > budget and end - start > 1:
            # Small forks that the tree leaves out make it larger than the estimate.
            end -= 1
            tree = grow([kept[index] for index in order[start:end]])
        padded = _pad(samples, order[start:end], lengths, pad_id)
        routes = _routes([samples[index] for index in order[start:end]], tree.predictor_BT, tree.positions)
        batches.append(replace(padded, tree=tree, routes_NLK=routes))
        start = end
    return batches


def _trained_length(sample: Sample) -> int:
    """Tokens up to the last trained one; 0 where there is none."""
    for length in range(len(sample.loss_mask), 0, -1):
        if sample.loss_mask[length - 1]:
            return length
    return 0


def _pad(samples: Sequence[Sample], rows: Sequence[int], lengths: Sequence[int], pad_id: int) -> MicroBatch:
    shape = (len(rows), max(lengths[index] for index in rows))
    input_ids_BT = torch.full(shape, pad_id, dtype=torch.int64)
    attention_mask_BT = torch.zeros(shape, dtype=torch.int64)
    loss_mask_BT = torch.zeros(shape, dtype=torch.bool)
    rollout_logprobs_BT = torch.zeros(shape, dtype=torch.float32)
    advantages_BT = torch.zeros(shape, dtype=torch.float32)
    chosen = [samples[index] for index in rows]
    teacher_logprobs_BT = None
    if any(it.teacher_logprobs is not None for it in chosen):
        teacher_logprobs_BT = torch.full(shape, torch.nan, dtype=torch.float32)
    versions_BT = torch.full(shape, -1, dtype=torch.int32) if all(it.versions for it in chosen) else None
    tokens = [it.trained_tokens if it.episode_tokens is None else it.episode_tokens for it in chosen]
    for row, index in enumerate(rows):
        sample, length = samples[index], lengths[index]
        input_ids_BT[row, :length] = torch.tensor(sample.ids[:length])
        attention_mask_BT[row, :length] = 1
        loss_mask_BT[row, :length] = torch.tensor(sample.loss_mask[:length], dtype=torch.bool)
        rollout_logprobs_BT[row, :length] = torch.tensor(sample.logprobs[:length], dtype=torch.float32)
        advantages_BT[row, :length] = torch.tensor(sample.advantages[:length], dtype=torch.float32)
        if teacher_logprobs_BT is not None and sample.teacher_logprobs is not None:
            teacher_logprobs_BT[row, :length] = torch.tensor(sample.teacher_logprobs[:length], dtype=torch.float32)
        if versions_BT is not None:
            versions_BT[row, :length] = torch.tensor(sample.versions[:length], dtype=torch.int32)
    media = _media([(row, samples[index].media, lengths[index]) for row, index in enumerate(rows)], shape)
    predictor_BT = torch.arange(input_ids_BT.numel()).view(shape) - 1
    routes = _routes([samples[index] for index in rows], predictor_BT, input_ids_BT.numel())
    return MicroBatch(
        input_ids_BT, attention_mask_BT, loss_mask_BT, rollout_logprobs_BT, advantages_BT,
        torch.tensor(tokens, dtype=torch.float32), tuple(rows), media,
        routes_NLK=routes, kept=Kept.joined([it.kept for it in chosen], [it.trained_tokens for it in chosen]),
        teacher_logprobs_BT=teacher_logprobs_BT, versions_BT=versions_BT,
    )  # fmt: skip


def _routes(samples: Sequence[Sample], predictor_BT: torch.Tensor, positions: int) -> torch.Tensor | None:
    """The experts of each position. `predictor_BT[b, t]` is that of token t − 1 of row b; of rows that share a position
    the first counts."""
    known = [(row, sample.routes) for row, sample in enumerate(samples) if sample.routes is not None]
    if not known:
        return None
    routes_NLK = torch.full((positions, *known[0][1].shape[1:]), -1, dtype=torch.int16)
    for row, routes in reversed(known):
        routes_NLK[predictor_BT[row, 1 : len(routes) + 1]] = routes
    return routes_NLK


def _media(rows: Iterable[tuple[int, Sequence[MediaInput], int]], shape: tuple[int, int]) -> dict[str, torch.Tensor]:
    """The images of all rows (row, images, tokens that are kept) as arguments of the model."""
    tensors: dict[str, list[torch.Tensor]] = {}
    types: dict[str, torch.Tensor] = {}
    for row, media, length in rows:
        for item in media:
            start, end = item.span
            if start >= length:
                continue  # Shown after the last token that is trained.
            for name, value in item.tensors.items():
                tensors.setdefault(name, []).append(value)
            for name, values in item.token_types.items():
                types.setdefault(name, torch.zeros(shape, dtype=torch.int64))[row, start:end] = torch.tensor(values)
    return {**{name: torch.cat(values) for name, values in tensors.items()}, **types}


def split(costs: Iterable[int], parts: int, *, even: bool = False) -> list[list[int]]:
    """Positions of `costs` dealt into at most `parts` lists of nearly equal sums: the dearest first, each to the list
    that has least so far. With `even` every list gets one before any gets another, so that they are as long as each
    other too, or one longer. Deterministic; each list keeps the order of positions, and none is empty.
    """
    items = list(enumerate(costs))
    lists: list[list[int]] = [[] for _ in range(min(parts, len(items)))]
    heap = [(0, 0, number) for number in range(len(lists))]
    for position, cost in sorted(items, key=lambda item: -item[1]):
        rounds, total, number = heapq.heappop(heap)
        lists[number].append(position)
        # At least 1, so that items that cost nothing are dealt out too.
        heapq.heappush(heap, (rounds + even, total + max(cost, 1), number))
    return [sorted(chosen) for chosen in lists]


def balance(
    groups: Sequence[Hashable], costs: Sequence[int], parts: int, *, together: bool, even: bool = False
) -> list[list[int]]:
    """Positions of samples in at most `parts` lists of nearly equal cost, for the updates of a step and for the ranks.

    `groups` names the group of each; with `together` those of one stay together where there are as many groups as
    parts. With `even` all lists get as many samples, or groups, or one more: where the loss is averaged over sequences,
    a long one alone in its update would weigh as much as all the short ones of another. The result depends on the
    arguments alone, so ranks that hold the same samples agree on the shares without an exchange.
    """
    members: dict[Hashable, list[int]] = {}
    for position, group in enumerate(groups):
        members.setdefault(group, []).append(position)
    if not together or len(members) < parts:
        return split(costs, parts, even=even)
    whole = list(members.values())
    dealt = split([sum(costs[position] for position in positions) for positions in whole], parts, even=even)
    return [[position for group in part for position in whole[group]] for part in dealt]
