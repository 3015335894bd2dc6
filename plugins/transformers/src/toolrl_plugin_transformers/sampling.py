"""Draw the next token of many rows at once, each row with its own settings and its own chance.

A row draws by inverting its cumulative distribution at one uniform number a token. The numbers come from a
generator of the request alone, so a seeded request samples the same whatever else is in flight (up to the rounding
of the logits, which depends on the shape of the batch).

Log-probabilities are those of softmax(logits / temperature) over the model's whole vocabulary, before top-k,
top-p and min-p: what a trainer computes. Ids beyond the tokenizer's and the placeholders of images are never drawn; a
trained model gives them no mass worth naming.

With `Sampling.keep_masks` a truncated row's log-probability is that of what it was drawn from: of softmax over the
tokens that were kept, which are returned too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own convention
from torch import Tensor

from toolrl.types import Sampling

_LARGEST_UNIFORM = 1.0 - 2.0**-23
"""Times a float32 total it stays below the total, so that a row never draws past its end."""

_BLOCK = 64
"""Tokens whose weights are summed up together."""


class Uniforms:
    """A request's stream of uniform numbers in [0, 1)."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))

    def draw(self) -> float:
        """The next number."""
        return min(float(self._generator.random(dtype=np.float32)), _LARGEST_UNIFORM)


@dataclass(frozen=True, slots=True)
class RowSettings:
    """The settings of B rows as tensors; None where every row has the neutral value."""

    temperature_B1: Tensor | None
    greedy_B: Tensor | None
    truncated: Tensor | None
    """Indices of the R rows with a top-k, a top-p or a min-p."""
    top_k_R1: Tensor | None = None
    top_p_R1: Tensor | None = None
    min_p_R1: Tensor | None = None
    widest: int | None = None
    """The largest top-k of those rows; None where one of them has none."""
    masked: list[int] = field(default_factory=list)
    """Those of the R rows whose kept tokens are returned."""

    @classmethod
    def of(cls, rows: Sequence[Sampling], device: torch.device) -> RowSettings:
        """Gather the settings of a batch."""
        temperatures = [row.temperature or 1.0 for row in rows]
        greedy = [row.temperature == 0 for row in rows]
        cut = [
            i for i, row in enumerate(rows) if row.temperature > 0 and (row.top_k > 0 or row.top_p < 1 or row.min_p > 0)
        ]
        tensor = torch.tensor
        settings = cls(
            tensor(temperatures, device=device)[:, None] if any(t != 1.0 for t in temperatures) else None,
            tensor(greedy, device=device) if any(greedy) else None,
            None,
        )
        if not cut:
            return settings
        top_k = [rows[i].top_k for i in cut]
        return cls(
            settings.temperature_B1,
            settings.greedy_B,
            tensor(cut, device=device),
            tensor([k or 2**31 for k in top_k], device=device)[:, None],
            tensor([rows[i].top_p for i in cut], device=device)[:, None],
            tensor([rows[i].min_p for i in cut], device=device)[:, None],
            max(top_k) if all(top_k) else None,
            [i for i in cut if rows[i].keep_masks],
        )


def sample(
    logits_BV: Tensor, uniforms_B: Tensor, settings: RowSettings, ids: int, never: Sequence[int] = ()
) -> tuple[Tensor, Tensor, dict[int, np.ndarray]]:
    """Draw one token a row, by its number in [0, 1), among the first `ids` of the vocabulary, those in `never` left
    out: (token ids [B], log-probabilities [B], the ids that `settings.masked` rows kept, ascending, by row)."""
    logits_BV = logits_BV.float()
    if settings.temperature_B1 is not None:
        logits_BV = logits_BV / settings.temperature_B1
    top_B1 = logits_BV.amax(-1, keepdim=True)
    weights_BV = (logits_BV - top_B1).exp_()
    log_total_B1 = weights_BV.sum(-1, keepdim=True).log_()
    weights_BV = weights_BV[:, :ids]
    for token in never:
        weights_BV[:, token : token + 1] = 0.0
    if settings.truncated is not None:
        weights_BV[settings.truncated] = truncate(weights_BV[settings.truncated], settings)
    tokens_B1 = _draw(weights_BV, uniforms_B[:, None])
    if settings.greedy_B is not None:
        drawable_BV = logits_BV[:, :ids]
        if never:
            drawable_BV = drawable_BV.clone()
            drawable_BV[:, list(never)] = -torch.inf
        best_B1 = drawable_BV.argmax(-1, keepdim=True)
        tokens_B1 = torch.where(settings.greedy_B[:, None], best_B1, tokens_B1)
    kept: dict[int, np.ndarray] = {}
    if settings.masked:
        weights_KV = weights_BV[settings.masked]
        log_total_B1[settings.masked] = weights_KV.sum(-1, keepdim=True).log_()
        row_M, id_M = weights_KV.nonzero(as_tuple=True)
        counts = row_M.bincount(minlength=len(settings.masked)).tolist()
        kept = {row: part.numpy() for row, part in zip(settings.masked, id_M.int().cpu().split(counts), strict=True)}
    return tokens_B1[:, 0], (logits_BV.gather(1, tokens_B1) - top_B1 - log_total_B1)[:, 0], kept


def _draw(weights_BV: Tensor, uniforms_B1: Tensor) -> Tensor:
    """The first token of each row whose cumulative weight is above the uniform number's part of the total `[B, 1]`.

    Blocks are summed up first and tokens inside of one block only: cumulative sums of a whole vocabulary are slow.
    """
    batch, count = weights_BV.shape
    if count % _BLOCK:
        weights_BV = F.pad(weights_BV, (0, -count % _BLOCK))
    weights_BNT = weights_BV.unflatten(1, (-1, _BLOCK))
    blocks_BN = weights_BNT.sum(-1)
    cumulative_BN = blocks_BN.cumsum(-1)
    targets_B1 = uniforms_B1 * cumulative_BN[:, -1:]
    # right=True: the first whose cumulative weight is above the target, so one without weight is never drawn.
    block_B1 = torch.searchsorted(cumulative_BN, targets_B1, right=True).clamp_(max=blocks_BN.shape[1] - 1)
    left_B1 = (targets_B1 - (cumulative_BN - blocks_BN).gather(1, block_B1)).clamp_(min=0.0)
    inner_BT = weights_BNT[torch.arange(batch, device=block_B1.device), block_B1[:, 0]].cumsum(-1)
    # Sums are rounded, and differently in a block than over blocks: neither below its first nor behind its last token.
    left_B1 = torch.minimum(left_B1, inner_BT[:, -1:] * _LARGEST_UNIFORM)
    token_B1 = torch.searchsorted(inner_BT, left_B1, right=True)
    return (block_B1 * _BLOCK + token_B1).clamp_(max=count - 1)


def truncate(probs_RV: Tensor, settings: RowSettings) -> Tensor:
    """Zero what top-k, then top-p and then min-p leave out, the order of transformers. Not normalised again: `sample`
    divides by the total."""
    assert settings.top_k_R1 is not None
    assert settings.top_p_R1 is not None
    assert settings.min_p_R1 is not None
    width = min(settings.widest or probs_RV.shape[1], probs_RV.shape[1])
    sorted_RK, order_RK = probs_RV.topk(width, dim=-1)
    rank_K = torch.arange(width, device=probs_RV.device)
    sorted_RK = sorted_RK.masked_fill(rank_K >= settings.top_k_R1, 0.0)
    before_RK = sorted_RK.cumsum(-1) - sorted_RK
    nucleus_R1 = settings.top_p_R1 * sorted_RK.sum(-1, keepdim=True)
    beyond_RK = (before_RK >= nucleus_R1) & (settings.top_p_R1 < 1) & (rank_K > 0)
    beyond_RK |= sorted_RK < settings.min_p_R1 * sorted_RK[:, :1]
    return torch.zeros_like(probs_RV).scatter_(1, order_RK, sorted_RK.masked_fill(beyond_RK, 0.0))
