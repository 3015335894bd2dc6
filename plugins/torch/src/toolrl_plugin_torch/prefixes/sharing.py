"""Whether a model's updates compute common beginnings once (`tree.py`), found out by its config and by trying.

The config rules out what would be silently wrong on sequences longer than a trial: a window, chunks, layers that carry
a state from token to token. A trial finds the rest: sequences with common beginnings, once each by itself and once as a
tree, must have the same log-probabilities. `auto` leaves out untried kinds of models; `true` tries them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import cycle, islice
from typing import Any, Literal

import torch

from toolrl.errors import ConfigError, first_line
from toolrl_plugin_torch.batch import Sample, pack
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.prefixes.tree import trial_sequences
from toolrl_plugin_torch.prefixes.tree_attention import CannotShareError, over_trees, without_adapter
from toolrl_plugin_torch.probe import allowed_rounding, probe_ids, typical
from toolrl_plugin_torch.rotary import rope_types, switch_length

logger = logging.getLogger(__name__)

TRIED = frozenset(
    {
        "apertus", "arcee", "cohere", "deepseek_v2", "deepseek_v3", "ernie4_5", "gemma", "glm", "glm4", "glm4_moe",
        "gpt2", "gpt_neox", "granite", "llama", "mistral", "mixtral", "olmo", "olmo2", "opt", "phi", "phi3", "qwen2",
        "qwen2_moe", "qwen3", "qwen3_moe", "smollm3", "starcoder2",
    }
)  # fmt: skip
"""Kinds of model (`model_type`) that `auto` takes."""

_TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3}
"""Greatest difference of a log-probability. Right ones differ by about 1e-5 in float32, and where a model rounds to
float32 inside by 1e-6 in float64. In 16-bit types what is allowed follows from the model (`probe.py`)."""


def choose(
    wanted: Literal["auto", True, False],
    scorers: Sequence[TokenScorer],
    where: str,
    tokenizer: Any = None,
    *,
    parallel: bool = False,
) -> bool:
    """Whether all these share; if so they take the fastest way that is right for them. Warns of the reason where
    `auto` doesn't.

    Raises ConfigError where sharing is asked for and can't be, or where sequences are to be cut (`parallel`), which
    needs it. `where`: the option's path in the config. `tokenizer`: for the text of the trial.
    """
    if wanted is False:
        return False
    for score in scorers:
        reason = _reason(score, tokenizer, untried=wanted is True)
        if reason is None:
            continue
        name = type(score.model).__name__
        if parallel:
            raise ConfigError(
                f"updates of {name} can't cut sequences, because {reason}",
                where="trainer.sequence_parallel",
                hint="Set it to 1, or to a divisor of the model's attention heads where that is the reason.",
            )
        if wanted is True:
            raise ConfigError(
                f"updates of {name} can't compute common beginnings once, because {reason}",
                where=where,
                hint="Set it to auto or false: every sequence is computed whole then.",
            )
        logger.warning("updates of %s compute every sequence whole, because %s", name, reason)
        return False
    for score in scorers:
        score.fuse()
    return True


def _reason(score: TokenScorer, tokenizer: Any, *, untried: bool) -> str | None:
    inner = without_adapter(score.model)
    reason = reason_by_config(inner.config, untried=untried)
    if reason is None and not getattr(inner, "_supports_attention_backend", False):
        reason = "its attention can't be exchanged"
    return reason or reason_by_trial(score, tokenizer)


def reason_by_config(config: Any, *, untried: bool = False) -> str | None:
    """What in a model's config rules sharing out, or None. `untried` allows kinds of models that `TRIED` lacks."""
    text = config.get_text_config()
    strange = sorted(set(getattr(text, "layer_types", None) or ()) - {"full_attention"})
    if strange:
        return f"it has layers of the kind {', '.join(strange)}"
    if _window(text) is not None:
        return f"its attention sees a window of the latest {_window(text)} tokens only"
    if getattr(text, "attention_chunk_size", None):
        return f"its attention works in chunks of {text.attention_chunk_size} tokens"
    if getattr(text, "alibi", False) or getattr(text, "position_embedding_type", None) == "alibi":
        return "its attention is biased by distance"
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    if switch_length(text) is not None or "dynamic" in rope_types(text):
        kinds = ", ".join(rope_types(text))
        return f"its rotary embedding ({kinds}) depends on the longest sequence of a micro-batch"
    kind = text.model_type
    if kind not in TRIED and not untried:
        return f"models of the kind {kind!r} haven't been tried; share_prefix: true tries"
    return None


def _window(text: Any) -> int | None:
    """The sliding window of all layers, or None. A model that names its layers has been judged by them."""
    if getattr(text, "layer_types", None) or getattr(text, "use_sliding_window", True) is False:
        return None
    return getattr(text, "sliding_window", None)


def reason_by_trial(score: TokenScorer, tokenizer: Any = None) -> str | None:
    """Why the trial went wrong, or None."""
    samples = _trial(score.model, tokenizer)
    by_itself, as_tree = torch.zeros(0), torch.zeros(0)
    try:
        by_itself, as_tree = (_logprobs(score, samples, share=share) for share in (False, True))
    except CannotShareError as error:
        return str(error)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        # Whatever a model makes of arguments that it wasn't written for; memory that ran out is no verdict on it.
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return f"it fails on a tree of tokens: {type(error).__name__}: {first_line(error)}"
    difference = (by_itself - as_tree).abs().double()
    allowed = _TOLERANCE.get(score.dtype)
    if allowed is not None:
        off = float(difference.max())
    else:
        off = typical(difference)
        allowed = allowed_rounding(score.model, lambda: _logprobs(score, samples, share=False))
    if off <= allowed:
        return None
    return f"log-probabilities of a trial were off by {off:.3g}, more than {allowed:.3g}"


def _trial(model: Any, tokenizer: Any) -> list[Sample]:
    text = cycle(probe_ids(tokenizer, model.get_input_embeddings().weight.shape[0]))
    samples = []
    for prompt, tail in trial_sequences(lambda count: list(islice(text, count))):
        mask = [0] * len(prompt) + [1] * len(tail)
        samples.append(Sample([*prompt, *tail], mask, [0.0] * len(mask), [0.0] * len(mask)))
    return samples


def _logprobs(score: TokenScorer, samples: Sequence[Sample], *, share: bool) -> torch.Tensor:
    """Of all trained tokens, sample by sample."""
    device = next(iter(score.model.parameters())).device
    found: dict[int, torch.Tensor] = {}
    with torch.no_grad(), over_trees([score.model]) if share else nullcontext():
        for batch in pack(samples, 4096, share=share):
            batch = batch.to(device)
            scored_BT = score(
                batch.input_ids_BT, batch.attention_mask_BT, batch.loss_mask_BT, tree=batch.tree
            ).logprobs_BT
            for row, sample in enumerate(batch.samples):
                found[sample] = scored_BT[row][batch.loss_mask_BT[row]]
    return torch.cat([found[number] for number in range(len(samples))])
