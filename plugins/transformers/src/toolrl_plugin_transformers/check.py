"""Verifies the slot loop for a model: compares it with a plain forward pass before the first episode.

Rows of different length with a common beginning are prefilled in two parts and then decoded, in slots, with padding
and with the beginning read once: everything that the engine does with a model. The log-probabilities must be those of
each sequence by itself, without cache or padding.
A model whose attention the engine misunderstands (another mask, positions inside the cache) is found here. A sliding
window is tried at a width that the rows are longer than.

A rotary embedding that depends on the longest position of a pass makes cached keys wrong, and rows depend on each
other, from some length on. `ModelRunner.max_positions` is lowered to that length.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from toolrl.errors import EngineError, first_line
from toolrl_plugin_torch.probe import allowed_rounding, probe_ids, typical
from toolrl_plugin_torch.rotary import rope_types
from toolrl_plugin_torch.start_check import probe_rows, steady_length
from toolrl_plugin_transformers.cache import SlotCache
from toolrl_plugin_transformers.model import ModelRunner

logger = logging.getLogger(__name__)
_PROMPTS = (23, 41, 32)
_BEGINNING = 3
_STEPS = 6
_WINDOW = 9
"""Of attention, in tokens: fewer than any prompt has."""
TOLERANCE = {torch.float64: 1e-6, torch.float32: 2e-3}
"""Greatest difference of a log-probability. Ones that are right differ by about 1e-5 in float32. In 16-bit types what
is allowed follows from the model (`toolrl_plugin_torch.probe`)."""


def verify(runner: ModelRunner, tokenizer: Any = None) -> float:
    """Greatest difference between the slot loop and a plain forward pass. Raises EngineError where it is too great."""
    _limit_positions(runner, tokenizer)
    if runner.direct is not None:
        try:
            return _compare(runner, tokenizer)
        except EngineError as error:
            logger.warning("the module itself is used, since the shorter forward pass is wrong for it: %s", error)
            runner.direct = None
    greatest = _compare(runner, tokenizer)
    with runner.small_window(_WINDOW) as changed:
        if changed:
            greatest = max(greatest, _compare(runner, tokenizer))
    return greatest


def _limit_positions(runner: ModelRunner, tokenizer: Any) -> None:
    """Lower `max_positions` to the length up to which cached keys stay right."""
    module, text = runner.module, runner.module.config.get_text_config()
    longest = runner.max_positions
    if longest is None:
        return  # A far position may be beyond a table of learned ones, which a GPU doesn't survive.

    def logprobs(ids_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        mask_BT = torch.ones_like(ids_BT)
        logits = module(input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, use_cache=False).logits
        return torch.log_softmax(logits[0, :-1].float(), dim=-1).gather(1, ids_BT[0, 1:, None])[:, 0]

    try:
        with runner.sampling(), torch.no_grad():
            reach = steady_length(logprobs, probe_rows(tokenizer, module), longest, runner.shape.dtype)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        # Such as a model of images, whose positions have three parts.
        logger.info("the model isn't tried at positions far apart, which it doesn't take: %s", first_line(error))
        return
    if reach < longest:
        runner.max_positions = reach
        logger.warning(
            "the engine takes at most %d tokens of a sequence, and the model up to %d: from there on its rotary "
            "embedding (%s) depends on the longest sequence of a pass, so cached keys would be wrong",
            reach, longest, ", ".join(rope_types(text)) or "unknown",
        )  # fmt: skip


def _compare(runner: ModelRunner, tokenizer: Any) -> float:
    text = iter(probe_ids(tokenizer, runner.ids))
    beginning = [next(text) for _ in range(_BEGINNING)]
    sizes = [min(size, (runner.max_positions or size + _STEPS) - _STEPS) for size in _PROMPTS]
    rows = [[*beginning, *(next(text) for _ in range(size - _BEGINNING + _STEPS))] for size in sizes]
    exact = TOLERANCE.get(runner.shape.dtype)

    def plain() -> torch.Tensor:
        return torch.stack([_plain(runner, row) for row in rows])

    with runner.sampling(), torch.no_grad():
        got, wanted = _slot_loop(runner, rows), plain()
        allowed = allowed_rounding(runner.module, plain) if exact is None else exact
    if not wanted.isfinite().all():
        raise EngineError(
            "a plain forward pass of the model gives logits that are not finite",
            where="model.path",
            hint="The weights are damaged or have diverged: use an earlier checkpoint.",
        )
    difference = (got - wanted).abs()
    name = type(runner.module).__name__
    greatest, usual = float(difference.max()), typical(difference)
    if not (greatest if exact else usual) <= allowed:
        raise EngineError(
            f"{name}: log-probabilities of the slot loop and of a plain forward pass differ by {greatest:.3g} "
            f"(the smaller four fifths by {usual:.3g} in the mean; allowed in "
            f"{str(runner.shape.dtype).removeprefix('torch.')}: {allowed:.3g})",
            where="engine",
            hint="The embedded engine can't serve this model exactly; use another (engine: vllm).",
        )
    return greatest


def _slot_loop(runner: ModelRunner, rows: list[list[int]]) -> torch.Tensor:
    """Log-probabilities `[rows, steps + 1, V]` after each prompt and after each further token."""
    prompts = [row[:-_STEPS] for row in rows]
    slots = SlotCache(runner.shape, 1 << 20)
    slots.reserve(len(rows) + 1, max(map(len, rows)), used=0)
    # The beginnings behind slot 0, then the rest of each prompt, so that slots and lengths differ.
    half = _BEGINNING
    runner.prefill(slots, 1, [prompt[:half] for prompt in prompts], [0] * len(rows))
    for slot in range(len(rows)):
        slots.move(slot + 1, slot, half)
    steps = [runner.prefill(slots, 0, [prompt[half:] for prompt in prompts], [half] * len(rows))]
    for step in range(_STEPS):
        ids = torch.tensor([row[step - _STEPS] for row in rows], device=runner.device)
        positions = torch.tensor([len(prompt) + step for prompt in prompts], device=runner.device)
        shared = _BEGINNING * (step % 2)
        steps.append(runner.decode(slots, ids, positions, int(positions.max()) + 1, shared=shared))
    return torch.log_softmax(torch.stack(steps, dim=1).float(), dim=-1)


def _plain(runner: ModelRunner, row: list[int]) -> torch.Tensor:
    """The same of one sequence, with nothing but the model: `[steps + 1, V]`."""
    logits = runner.module(input_ids=torch.tensor([row], device=runner.device), use_cache=False).logits[0]
    return torch.log_softmax(logits[-_STEPS - 1 :].float(), dim=-1)
