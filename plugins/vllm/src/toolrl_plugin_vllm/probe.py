"""Does vLLM sample from the trainer's weights? Compare the log-probabilities of a fixed text.

A weight update that went wrong raises nothing: a tensor that is left as it was, or a packed copy that isn't made anew,
gives a model that still writes sound text. The trainer would then learn from samples of another policy than its own. So
both compute the log-probabilities of the same random token ids, in which every layer and every row of the output layer
has a part.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from toolrl.errors import EngineError

LENGTH = 64
GREATEST, MEAN = 1e-4, 0.05
"""Of the differences in float32, and in 16-bit types, where rounding alone moves single tokens by more."""


def probe_ids(known_ids: int, length: int) -> list[int]:
    """The text: random ids, the same at every call."""
    chance = random.Random(0)
    return [chance.randrange(known_ids) for _ in range(max(2, min(LENGTH, length)))]


def prompt_logprobs(output: Any, ids: Sequence[int]) -> list[float]:
    """Those of every token but the first, from vLLM's `RequestOutput`."""
    return [float(entry[token].logprob) for token, entry in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]


def trainer_logprobs(module: Any, ids: Sequence[int]) -> list[float]:
    """The same by the trainer's module, in one forward pass without a cache."""
    import torch

    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            given = torch.tensor([list(ids)], device=next(module.parameters()).device)
            logits = module(input_ids=given, use_cache=False).logits[0, :-1].float()
            table = torch.log_softmax(logits, dim=-1)
            return [float(value) for value in table.gather(1, given[0, 1:, None])[:, 0]]
    finally:
        module.train(training)


def compare(
    engine: Sequence[float],
    trainer: Sequence[float],
    *,
    exact: bool,
    tolerance: float | None,
    when: str,
    who: str = "vLLM",
) -> float:
    """How far they are apart: the greatest difference where `exact`, else the mean. Raises EngineError where that is
    more than `tolerance`; it says `who` samples and `when` they were compared."""
    # A value that is no number compares with nothing, so that max() could pass over it.
    differences = [abs(a - b) if math.isfinite(a - b) else math.inf for a, b in zip(engine, trainer, strict=True)]
    apart = max(differences) if exact else sum(differences) / len(differences)
    allowed = tolerance if tolerance is not None else GREATEST if exact else MEAN
    if apart <= allowed:
        return apart
    kind = "greatest difference" if exact else "mean difference"
    place = differences.index(max(differences))
    raise EngineError(
        f"{when} {who} doesn't have the trainer's weights: over {len(differences)} tokens of a fixed text the {kind} "
        f"of their log-probabilities is {apart:.3g}, more than {allowed:g} (token {place}: {engine[place]:.5f} by "
        f"{who}, {trainer[place]:.5f} by the trainer)",
        where="engine",
        hint="Train with `engine: transformers`, or raise engine.options.tolerance where the difference is rounding: "
        "compare it with logprob_mismatch/max of earlier steps.",
    )
