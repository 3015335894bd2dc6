"""Log-probabilities of the trained tokens, without ever holding logits of all positions and the whole vocabulary.

Only positions whose next token is trained reach the head, and they go through it in chunks: a chunk's logits are made,
reduced to one log-probability (and entropy) a token, and dropped; the backward pass makes them again. Where all chunks
together are small they are kept instead, which saves a quarter of the head's work. The gradient is written out, see
`_SelectedLogprobs`.

This needs the model's hidden states and its head apart from each other. Models differ in what they do to logits behind
the head (a scale, a soft cap), so nothing is assumed: when a `TokenScorer` is made, one forward pass with amplified
logits finds out what this model does, and whether hidden states and head give its logits. Where they don't, the model's
own logits at the needed positions are used: exact for every model, but with more memory; `TokenScorer.fallback` is
the reason.

Log-probabilities are those of softmax(logits / temperature) in float32 (float64 where the model is), over the whole
vocabulary or the ids that were kept (`sampling_masks.py`), which is what engines report for sampled tokens. Logits are
in float32 from the head on, also those of 16-bit models.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.autograd.function import once_differentiable

from toolrl_plugin_torch.fused.model import FusedLayers
from toolrl_plugin_torch.head import HeadTransform, probe_head, wide_linear
from toolrl_plugin_torch.prefixes.tree import TokenTree
from toolrl_plugin_torch.prefixes.tree_attention import model_inputs
from toolrl_plugin_torch.rotary import switch_length
from toolrl_plugin_torch.sampling_masks import LOW, Kept
from toolrl_plugin_torch.sharding.sequence_parallel import SequenceGroup

logger = logging.getLogger(__name__)
T = TypeVar("T")

_MIN_ROWS = 512
"""Rows of a chunk at least: with fewer, reading the head's weight takes longer than multiplying with it."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Aligned with the tokens; 0 where the mask is 0."""

    logprobs_BT: torch.Tensor
    """Natural log-probability of each trained token."""
    entropy_BT: torch.Tensor | None
    """Entropy in nats of the distribution each trained token was drawn from; None where it wasn't asked for."""


class TokenScorer:
    """Scores tokens with one causal language model. Gradients flow into it unless torch's grad mode is off.

    Goes past the model's own `forward`, so wrappers that hook into it (DDP) have to be put around the scorer's caller.
    """

    def __init__(self, model: Any, dtype: torch.dtype | None = None) -> None:
        """`dtype` is that the model is computed in, where its parameters are in another one."""
        self.model = model
        self.dtype: torch.dtype = dtype or next(iter(model.parameters())).dtype
        probed = self.run(probe_head, model)
        self.parts = None if isinstance(probed, str) else probed
        """The model without its head, the head, and what follows it; None where it can't be taken apart."""
        self.fallback: str | None = probed if isinstance(probed, str) else None
        """Why the model's own logits are used; None where hidden states and head are."""
        if self.fallback:
            logger.warning(
                "log-probabilities of %s come from its own logits, which takes more memory: %s",
                type(model).__name__,
                self.fallback,
            )
        self._switch = switch_length(model.config.get_text_config())
        self._fused: FusedLayers | None = None
        self.group: SequenceGroup | None = None
        """The ranks that compute each tree together."""

    def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """`work` of the arguments, where the model can be called and its head's weight be used."""
        return work(*arguments)

    def fuse(self) -> None:
        """Compute trees without the model's own layers, where that is possible (`fused.py`)."""
        self._fused = FusedLayers.of(self.model) if self.parts is not None else None

    def __call__(
        self,
        input_ids_BT: torch.Tensor,
        attention_mask_BT: torch.Tensor,
        loss_mask_BT: torch.Tensor,
        *,
        temperature: float = 1.0,
        entropy: bool = False,
        media: Mapping[str, torch.Tensor] | None = None,
        tree: TokenTree | None = None,
        kept: Kept | None = None,
    ) -> TokenLogprobs:
        """Log-probabilities of the tokens under the mask, each given the tokens before it. `media`: more arguments of
        the model, for images among the tokens. `tree`: the rows as a tree, computed in their place, which takes
        `over_trees` around this and the backward pass. `kept`: the ids that the tokens under the mask were drawn from,
        row by row; those alone have a probability.

        The mask is aligned with the tokens and must be 0 on each row's first. Entropies carry a gradient too.
        """
        if bool(loss_mask_BT[:, 0].any()):
            raise ValueError("the loss mask is 1 on the first token of a row, which nothing predicts")
        # Arguments for images have no row for each sequence.
        if self._switch is not None and tree is None and set(media or ()) <= {"position_ids"}:
            lengths_B = attention_mask_BT.sum(dim=1) if not media else media["position_ids"].amax(dim=1) + 1
            short_B = lengths_B <= self._switch
            if len(set(short_B.tolist())) > 1:
                tensors = (input_ids_BT, attention_mask_BT, loss_mask_BT)
                options = {"temperature": temperature, "entropy": entropy}
                return self._by_side(short_B, tensors, media or {}, kept, options)
        targets_N = loss_mask_BT.reshape(-1).nonzero().squeeze(1)
        labels_N = input_ids_BT.reshape(-1).index_select(0, targets_N)
        inputs: dict[str, Any] = {"input_ids": input_ids_BT, "attention_mask": attention_mask_BT, "use_cache": False}
        if tree is None:
            inputs |= media or {}
            # The token at t is predicted at t − 1, which is the entry before it in the flattened batch too.
            predictors_N = targets_N - 1
        else:
            inputs = model_inputs(tree, self.group)
            predictors_N = tree.predictor_BT.reshape(-1).index_select(0, targets_N)
            if self.group is not None:
                own_N, predictors_N = self.group.holds(predictors_N, tree.positions)
                targets_N, labels_N = targets_N[own_N], labels_N[own_N]
                kept = kept and kept.of(own_N)
        if self.parts is not None:
            base, head, transform = self.parts
            if tree is not None and self._fused is not None and self._fused.usable:
                hidden_NH = self._fused(tree, predictors_N)
            else:
                hidden_BTH = base(**inputs)[0]
                hidden_NH = hidden_BTH.reshape(-1, hidden_BTH.shape[-1]).index_select(0, predictors_N)
            logprobs_N, entropy_N = selected_logprobs(
                hidden_NH, head.weight, head.bias, labels_N, temperature,
                transform=transform, entropy=entropy, kept=kept,
            )  # fmt: skip
        else:
            logits_NV = self._own_logits(inputs, predictors_N)
            logprobs_N, entropy_N = _reduce_logits(logits_NV, labels_N, temperature, entropy, kept)

        def spread(values_N: torch.Tensor) -> torch.Tensor:
            flat = values_N.new_zeros(input_ids_BT.numel()).index_copy(0, targets_N, values_N)
            return (flat if tree is None or self.group is None else self.group.total(flat)).view_as(input_ids_BT)

        return TokenLogprobs(spread(logprobs_N), spread(entropy_N) if entropy else None)

    def _by_side(
        self,
        short_B: torch.Tensor,
        tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        media: Mapping[str, torch.Tensor],
        kept: Kept | None,
        options: Mapping[str, Any],
    ) -> TokenLogprobs:
        """Rows on either side of the length at which a rotary embedding switches its factors, each side by itself and
        without padding beyond its longest row, which would count."""
        owner_N = tensors[2].nonzero()[:, 0]
        found = []
        for rows_B in (short_B, ~short_B):
            width = int(tensors[1][rows_B].sum(dim=1).max())
            own = [tensor[rows_B, :width] for tensor in tensors]
            more = {name: value[rows_B, :width] for name, value in media.items()}
            of_rows = kept and kept.of(rows_B[owner_N].nonzero().squeeze(1))
            found.append(self(*own, media=more, kept=of_rows, **options))

        def joined(sides: list[torch.Tensor]) -> torch.Tensor:
            whole_BT = sides[0].new_zeros(tensors[0].shape)
            for rows_B, values in zip((short_B, ~short_B), sides, strict=True):
                padded = torch.nn.functional.pad(values, (0, whole_BT.shape[1] - values.shape[1]))
                whole_BT = whole_BT.index_put((rows_B.nonzero().squeeze(1),), padded)
            return whole_BT

        entropies = [it.entropy_BT for it in found if it.entropy_BT is not None]
        return TokenLogprobs(joined([it.logprobs_BT for it in found]), joined(entropies) if entropies else None)

    def _own_logits(self, inputs: dict[str, Any], predictors_N: torch.Tensor) -> torch.Tensor:
        """The model's logits at places of the flattened batch [N, V], in its own precision."""
        length = inputs["input_ids"].shape[1]
        rows_N, columns_N = predictors_N // length, predictors_N % length
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            kept_K, columns_N = columns_N.unique(return_inverse=True)
            inputs = {**inputs, "logits_to_keep": kept_K}
        logits_BKV = self.model(**inputs).logits
        return logits_BKV[rows_N, columns_N]


def selected_logprobs(
    hidden_NH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    labels_N: torch.Tensor,
    temperature: float = 1.0,
    *,
    transform: HeadTransform | None = None,
    entropy: bool = False,
    kept: Kept | None = None,
    chunk_rows: int | None = None,
    keep: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """log softmax(transform(hidden · weightᵀ + bias) / temperature) at the labels, and the entropies (zeros where they
    aren't asked for): two tensors [N], float32, or float64 where the hidden states are. With `kept` the softmax is that
    over each row's kept ids.

    `chunk_rows` and `keep` (hold all chunks' exponentials for the backward pass) default to what fits the device.
    """
    transform = transform or HeadTransform()
    vocabulary = weight_VH.shape[0]
    wide = torch.float64 if hidden_NH.dtype == torch.float64 else torch.float32
    chunk_bytes, keep_bytes = _memory(hidden_NH.device)
    if chunk_rows is None:
        chunk_rows = max(chunk_bytes // (vocabulary * wide.itemsize), _MIN_ROWS)
    if keep is None:
        keep = hidden_NH.shape[0] * vocabulary * wide.itemsize <= keep_bytes
    # A soft cap's derivative needs the logits themselves, which the probabilities don't give back.
    keep = keep and torch.is_grad_enabled() and transform.softcap is None
    settings = _Settings(temperature, transform, entropy, chunk_rows, keep, wide, kept)
    logprobs_N, entropy_N = _SelectedLogprobs.apply(hidden_NH, weight_VH, bias_V, labels_N, settings)
    return logprobs_N, entropy_N


def _memory(device: torch.device) -> tuple[int, int]:
    """Bytes of a chunk's logits (on a CPU about what its cache holds), and of all chunks' up to which they are kept."""
    return 2**22 if device.type == "cpu" else 2**29, 2**30


@dataclass(frozen=True, slots=True)
class _Settings:
    temperature: float
    transform: HeadTransform
    entropy: bool
    chunk_rows: int
    keep: bool
    wide: torch.dtype
    kept: Kept | None

    def chunks(self, count: int) -> Iterator[slice]:
        for start in range(0, count, self.chunk_rows):
            yield slice(start, min(start + self.chunk_rows, count))

    def logits(self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """What softmax is taken of, in the wide type; a tensor of its own, free to be overwritten."""
        logits = self.transform.apply_(wide_linear(hidden, weight, bias, self.wide))
        return logits if self.temperature == 1.0 else logits.div_(self.temperature)

    def truncate_(self, logits: torch.Tensor, rows: slice) -> torch.Tensor:
        """In place, without the ids that weren't kept."""
        # On a CPU exp takes much longer of a finite number whose exponential is 0.
        return logits if self.kept is None else logits.masked_fill_(self.kept.dropped(rows.start, logits), -torch.inf)


class _SelectedLogprobs(torch.autograd.Function):  # type: ignore[misc]
    """With z the logits, p = softmax(z), y the label and H the entropy:

    log p_y = z_y − logsumexp(z)    ∂ log p_y / ∂z = onehot(y) − p
    H = logsumexp(z) − Σ p·z        ∂H / ∂z = −p · (log p + H)
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        labels_N: torch.Tensor,
        settings: _Settings,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = hidden_NH.shape[0]
        logprobs_N = hidden_NH.new_empty(count, dtype=settings.wide)
        entropy_N = hidden_NH.new_zeros(count, dtype=settings.wide)
        total_N1 = hidden_NH.new_empty((count, 1), dtype=settings.wide)
        kept: list[torch.Tensor] = []
        for rows in settings.chunks(count):
            logits = settings.truncate_(settings.logits(hidden_NH[rows], weight_VH, bias_V), rows)
            selected = logits.gather(1, labels_N[rows, None]).squeeze(1)
            top = logits.amax(dim=1, keepdim=True)
            shifted = logits.sub_(top)
            exponential = shifted.exp()
            if settings.keep:
                kept.append(exponential)
            total = torch.sum(exponential, dim=1, keepdim=True, out=total_N1[rows])
            log_total = total.log()
            logprobs_N[rows] = selected - (top + log_total).squeeze(1)
            if settings.entropy:
                if settings.kept is not None:
                    shifted.clamp_(min=LOW)
                # Σ p·z with z shifted by its greatest, so that nothing large cancels.
                entropy_N[rows] = log_total.squeeze(1) - shifted.mul_(exponential).sum(dim=1) / total.squeeze(1)
        ctx.settings = settings
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, labels_N, entropy_N, total_N1, *kept)
        if not settings.entropy:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(
        ctx: Any, grad_logprobs_N: torch.Tensor, grad_entropy_N: torch.Tensor
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, labels_N, entropy_N, total_N1, *kept = ctx.saved_tensors
        settings: _Settings = ctx.settings
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if kept and not settings.entropy and hidden_NH.dtype == settings.wide:
            return _grads_of_logprobs(ctx, grad_logprobs_N * (settings.transform.scale / settings.temperature))
        grad_hidden = torch.empty_like(hidden_NH) if needs_hidden else None
        # Sums over chunks are kept wide: in bfloat16 the later chunks would be rounded away.
        grad_weight = torch.zeros_like(weight_VH, dtype=settings.wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=settings.wide) if needs_bias else None
        for number, rows in enumerate(settings.chunks(hidden_NH.shape[0])):
            hidden = hidden_NH[rows]
            capped: torch.Tensor | None = None
            if settings.keep:
                probabilities = kept[number] / total_N1[rows]
            else:
                logits = settings.logits(hidden, weight_VH, bias_V)
                capped = logits * settings.temperature if settings.transform.softcap is not None else None
                probabilities = settings.truncate_(logits, rows).softmax(dim=1)
            grad = probabilities * -grad_logprobs_N[rows, None]
            grad.scatter_add_(1, labels_N[rows, None], grad_logprobs_N[rows, None])
            if settings.entropy:
                from_entropy = torch.xlogy(probabilities, probabilities)
                from_entropy.addcmul_(probabilities, entropy_N[rows, None])
                grad.sub_(from_entropy.mul_(grad_entropy_N[rows, None]))
            grad = settings.transform.backward_(grad.div_(settings.temperature), capped).to(hidden.dtype)
            if grad_hidden is not None:
                torch.mm(grad, weight_VH, out=grad_hidden[rows])
            if grad_weight is not None:
                if grad.dtype == grad_weight.dtype:
                    grad_weight.addmm_(grad.t(), hidden)
                else:
                    grad_weight.add_(grad.t() @ hidden)
            if grad_bias is not None:
                grad_bias.add_(grad.sum(dim=0))
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            None,
            None,
        )


def _grads_of_logprobs(ctx: Any, factor_N: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Gradients of hidden states, weight and bias from that of each raw label's logit, where the exponentials of logits
    are kept with their totals, and nothing else has a gradient.

    The gradient of logits f · (onehot(y) − p) is never made, nor is p = exponential / total: f and the total go to the
    hidden states, which are narrower, and the onehot part is a row of the weight.
    """
    hidden_NH, weight_VH, bias_V, labels_N, _, total_N1, *kept = ctx.saved_tensors
    needed = ctx.needs_input_grad
    scaled_NH = hidden_NH * factor_N[:, None]
    grad_hidden = torch.empty_like(hidden_NH) if needed[0] else None
    grad_weight = torch.zeros_like(weight_VH).index_add_(0, labels_N, scaled_NH) if needed[1] else None
    grad_bias = torch.zeros_like(bias_V).index_add_(0, labels_N, factor_N) if needed[2] else None
    scaled_NH.div_(total_N1)
    share_N = factor_N / total_N1[:, 0]
    for rows, exponentials in zip(ctx.settings.chunks(hidden_NH.shape[0]), kept, strict=True):
        if grad_hidden is not None:
            torch.mm(exponentials, weight_VH, out=grad_hidden[rows])
        if grad_weight is not None:
            grad_weight.addmm_(exponentials.t(), scaled_NH[rows], alpha=-1.0)
        if grad_bias is not None:
            grad_bias.addmv_(exponentials.t(), share_N[rows], alpha=-1.0)
    if grad_hidden is not None:
        grad_hidden.mul_(-share_N[:, None])
        grad_hidden.addcmul_(weight_VH.index_select(0, labels_N), factor_N[:, None])
    return grad_hidden, grad_weight, grad_bias, None, None


def _reduce_logits(
    logits_NV: torch.Tensor, labels_N: torch.Tensor, temperature: float, entropy: bool, kept: Kept | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same two tensors from given logits."""
    wide = torch.float64 if logits_NV.dtype == torch.float64 else torch.float32
    logits_NV = logits_NV.to(wide) / temperature
    if kept is not None:
        logits_NV = logits_NV.masked_fill(kept.dropped(0, logits_NV), LOW)
    all_NV = logits_NV.log_softmax(dim=1)
    chosen_N = all_NV.gather(1, labels_N[:, None]).squeeze(1)
    return chosen_N, -torch.linalg.vecdot(all_NV.exp(), all_NV) if entropy else torch.zeros_like(chosen_N)
