"""Checks before a trainer's first step that its log-probabilities are a function of the tokens alone.

Two small rows are scored several times. What is found is not named by a model's config, or not by a name that is known
here, so it is found by trying:

- **Noise.** Passes in the mode of updates must equal each other and one in eval mode, in which the engine samples.
- **Neighbours.** A row must not change with the length of the row beside it, nor may it change between a beginning that
  is cached and the whole: a rotary embedding that depends on the longest position of a pass does both. The second row
  gets positions as far away as a sequence of the run may reach, so it takes the memory of a few tokens.
"""

from __future__ import annotations

import inspect
import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from toolrl.errors import ConfigError, first_line
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.modes import evaluating
from toolrl_plugin_torch.prefixes.tree_attention import without_adapter
from toolrl_plugin_torch.probe import probe_ids, typical
from toolrl_plugin_torch.rotary import rope_types

logger = logging.getLogger(__name__)

_LENGTH = 24
"""Tokens of a row."""
_SHORT = 8
"""Tokens of a row beside another one: no limit of a rotary embedding is below it."""
_MODES, _NOISE_16 = {torch.float64: 1e-6, torch.float32: 2e-3}, 0.01
"""Allowed for passes in different modes without a draw: the greatest difference of a log-probability, as in the trial
of `prefixes.sharing`, and in 16-bit types the typical one. RWKV rounds otherwise in train mode."""
_EXACT, _NEIGHBOUR_16 = {torch.float64: 1e-9, torch.float32: 1e-5}, 1e-3
"""Allowed typical differences beside another row. Right ones are mostly 0, since the passes have the same shape; the
order in which a GPU adds up the outputs of experts may show."""
UNLIMITED = 2**31
"""Tokens of a sequence from which on neither the run nor the model has named a limit."""
_CONTENT = 4.0
"""Allowed for another length of the neighbour, as a multiple of what other tokens in it do: experts that get other
tokens round otherwise."""
Logprobs = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Of token ids [2, T] at positions [2, T], those of the first row's tokens but the first [T - 1]."""


def check_passes(score: TokenScorer, tokenizer: Any, longest: int) -> None:
    """Raise ConfigError if the log-probabilities of a sequence aren't reproducible, or depend on the length of those
    beside it. `longest`: most tokens of a sequence of the run. Ranks that share a model call this together."""
    rows = probe_rows(tokenizer, score.model)
    _check_noise(score, rows)
    given = inspect.signature(without_adapter(score.model).forward).parameters
    # Without a limit a far position may be beyond a table of learned ones, which a GPU doesn't survive.
    if longest >= UNLIMITED or "position_ids" not in given:
        return

    def logprobs(ids_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        return _scored(score, ids_BT, positions_BT)[0, 1:]

    try:
        reach = steady_length(logprobs, rows, longest, score.dtype)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        # Such as a model of images, whose positions have three parts.
        logger.info("the model isn't tried at positions far apart, which it doesn't take: %s", first_line(error))
        return
    if reach < longest:
        kinds = ", ".join(rope_types(score.model.config.get_text_config())) or "unknown"
        raise ConfigError(
            f"model.path: log-probabilities of {type(score.model).__name__} change with the length of other sequences "
            f"in a micro-batch; expected sequences of at most {reach} tokens (got up to {longest}; rotary embedding: "
            f"{kinds})",
            hint=f"Set rollout.max_episode_tokens to {reach} or less, or take a checkpoint whose rotary embedding "
            "doesn't depend on the length of a sequence.",
        )


def probe_rows(tokenizer: Any, model: Any) -> torch.Tensor:
    """Three rows of token ids [3, T] on the model's device, the same at every call."""
    weight = model.get_input_embeddings().weight
    ids = probe_ids(tokenizer, weight.shape[0], 3 * _LENGTH)
    return torch.tensor(ids, device=weight.device).view(3, _LENGTH)


def steady_length(logprobs: Logprobs, rows: torch.Tensor, longest: int, dtype: torch.dtype) -> int:
    """Most tokens, up to `longest`, that a row may have without changing the log-probabilities of one beside it.
    `rows`: those of `probe_rows`."""
    rows = rows[:, :_SHORT]
    near_T = torch.arange(_SHORT, device=rows.device)

    def beside(other: int, length: int) -> torch.Tensor:
        """The first row's, beside another one that ends at this length."""
        positions_BT = torch.stack([near_T, near_T + length - _SHORT])
        return logprobs(rows[[0, other]], positions_BT).double()

    alone = beside(1, _SHORT)
    allowed = max(_EXACT.get(dtype, _NEIGHBOUR_16), _CONTENT * typical(alone - beside(2, _SHORT)))

    def steady(length: int) -> bool:
        return typical(alone - beside(1, length)) <= allowed

    if longest <= _SHORT or steady(longest):
        return longest
    least, most = _SHORT, longest
    while most - least > 1:
        middle = (least + most) // 2
        least, most = (middle, most) if steady(middle) else (least, middle)
    return least


def _check_noise(score: TokenScorer, ids_BT: torch.Tensor) -> None:
    passes, drew = [], False
    for seed in range(2):
        with _seeded(seed, ids_BT.device):
            before = _generators(ids_BT.device)
            passes.append(_scored(score, ids_BT)[:, 1:])
            drew |= _generators(ids_BT.device) != before
    with _seeded(0, ids_BT.device), evaluating(score.model):
        still = _scored(score, ids_BT)[:, 1:]
    differences = [passes[0] - other for other in (passes[1], still)]
    greatest = max(float(difference.abs().max()) for difference in differences)
    # A router's draw may move a single token by little, which the tolerance would cover.
    if drew:
        wrong = greatest > 0
    elif score.dtype in _MODES:
        wrong = greatest > _MODES[score.dtype]
    else:
        wrong = max(map(typical, differences)) > _NOISE_16
    name = type(score.model).__name__
    if wrong:
        raise ConfigError(
            f"model.path: {name} computes other log-probabilities in updates than in sampling (by up to "
            f"{greatest:.3g} nats{', as it draws random numbers' if drew else ''}){_suspects(score.model.config)}",
            hint="Set such fields to 0 in the config.json of the model, or leave model.trust_remote_code out if "
            "transformers has the model.",
        )
    if drew:
        logger.warning("%s draws random numbers in updates, without an effect on a trial", name)


def _suspects(config: Any) -> str:
    """The fields of a config that are named after noise, for a message."""
    words = ("jitter", "noise", "drop", "stochastic")
    found = [
        f"{name} {value:g}"
        for name, value in config.get_text_config().to_dict().items()
        if isinstance(value, float) and value and any(word in name for word in words)
    ]
    return f"; its config has {', '.join(found)}" if found else ""


def _scored(score: TokenScorer, ids_BT: torch.Tensor, positions_BT: torch.Tensor | None = None) -> torch.Tensor:
    """Log-probabilities [B, T] of all tokens but the first of each row."""
    mask_BT = torch.ones_like(ids_BT)
    loss_mask_BT = mask_BT.bool()
    loss_mask_BT[:, 0] = False
    media = None if positions_BT is None else {"position_ids": positions_BT}
    with torch.no_grad():
        return score(ids_BT, mask_BT, loss_mask_BT, media=media).logprobs_BT.double()


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Meanwhile random numbers follow from the seed; afterwards they go on as if nothing had been drawn."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _generators(device: torch.device) -> tuple[bytes, ...]:
    """States of the process's generators of random numbers."""
    _, keys, place, *_ = np.random.get_state()
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]
    return repr(random.getstate()).encode(), bytes(keys), bytes([place % 256]), *(bytes(it.numpy()) for it in states)
