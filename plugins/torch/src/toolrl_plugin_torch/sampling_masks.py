"""Sampling masks: the tokens that top-k, top-p and min-p left to draw each sampled token from, recorded and replayed.

With truncation the policy that samples is the renormalised distribution over the tokens that were kept. Keep Sampling
Mask (DeepSeek-V3.2, arXiv 2512.02556, section 3.1) records them in the rollout, and the trainer computes every
log-probability over them alone: of the policy, of the policy before the step, of the reference.

`Generation.sampling_masks` is a sequence of blocks, one a generation: the number of sampled tokens and the bytes that
follow (two little-endian uint32), then by zlib the number of ids of each token and all ids in ascending order, each as
the difference to the one before it (int32).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from toolrl.errors import EngineError

_HEAD = struct.Struct("<II")
LOW = -1e30
"""A logit without probability. Finite, so that times its probability of 0 it is 0."""


def encode(kept: Sequence[Sequence[int] | np.ndarray]) -> bytes:
    """A block: of each sampled token the ids it was drawn from, in ascending order."""
    counts = np.fromiter((len(ids) for ids in kept), dtype="<i4", count=len(kept))
    gaps = np.diff(np.concatenate([np.asarray(ids, dtype="<i4") for ids in kept]), prepend=np.int32(0))
    body = zlib.compress(counts.tobytes() + gaps.tobytes(), 1)
    return _HEAD.pack(len(kept), len(body)) + body


def decode(masks: bytes, sampled: Sequence[int]) -> Kept:
    """The kept ids of a trajectory's `sampled` tokens. Raises EngineError where they aren't those of these tokens."""
    blocks = list(_blocks(masks))
    counts = np.concatenate([counts for counts, _ in blocks] or [np.zeros(0, np.int32)])
    ids = np.concatenate([ids for _, ids in blocks] or [np.zeros(0, np.int32)])
    found = int((ids == np.repeat(np.asarray(sampled, np.int32), counts)).sum()) if len(counts) == len(sampled) else -1
    if found != len(sampled):
        raise EngineError(
            f"the sampling masks of {len(counts)} tokens aren't those of the {len(sampled)} tokens that were sampled",
            hint="The engine has to record the ids that each sampled token was drawn from, itself among them.",
        )
    return Kept(torch.from_numpy(counts.astype(np.int64)), torch.from_numpy(ids))


def _blocks(masks: bytes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Counts and ids of each."""
    start = 0
    while start < len(masks):
        tokens, size = _HEAD.unpack_from(masks, start)
        start += _HEAD.size + size
        numbers = np.frombuffer(zlib.decompress(masks[start - size : start]), dtype="<i4")
        yield numbers[:tokens], numbers[tokens:].cumsum(dtype=np.int32)


@dataclass(frozen=True, slots=True)
class Kept:
    """The ids that N tokens were drawn from, on the CPU."""

    counts_N: torch.Tensor
    """int64, how many each has; 0 for all ids of the vocabulary."""
    ids_M: torch.Tensor
    """int32, those of all tokens one after another."""

    @classmethod
    def joined(cls, parts: Sequence[Kept | None], tokens: Sequence[int]) -> Kept | None:
        """Those of several sequences with so many tokens, of which some have none; None where none has any."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        counts = [
            torch.zeros(count, dtype=torch.int64) if part is None else part.counts_N
            for part, count in zip(parts, tokens, strict=True)
        ]
        return cls(torch.cat(counts), torch.cat([part.ids_M for part in known]))

    def of(self, places_R: torch.Tensor) -> Kept:
        """Those of some of the tokens."""
        parts = self.ids_M.split(self.counts_N.tolist())
        places = places_R.tolist()
        ids = [parts[place] for place in places]
        return Kept(self.counts_N[places], torch.cat(ids) if ids else self.ids_M[:0])

    def dropped(self, start: int, logits_RV: torch.Tensor) -> torch.Tensor:
        """Of R tokens from `start` on, the logits without probability: bool `[R, V]`."""
        rows, vocabulary = logits_RV.shape
        counts_R, device = self.counts_N[start : start + rows], logits_RV.device
        first = int(self.counts_N[:start].sum())
        ids_K = self.ids_M[first : first + int(counts_R.sum())].to(torch.int64)
        row_K = torch.arange(rows).repeat_interleave(counts_R)
        dropped_RV = (counts_R > 0).to(device)[:, None].repeat(1, vocabulary)
        dropped_RV.view(-1)[(row_K * vocabulary + ids_K).to(device)] = False
        return dropped_RV
