"""Does a copy of a model have the weights that it should have? Compare the log-probabilities of a fixed text.

A transfer of weights that went wrong raises nothing: a tensor that is left as it was gives a model that still writes
sound text, and the trainer would learn from samples of another policy than its own. So both sides compute the
log-probabilities of the same random token ids, in which every layer and every row of the output layer has a part.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import torch

from toolrl.errors import EngineError

LENGTH = 64
GREATEST, MEAN = 1e-4, 0.05
"""Of the differences in float32, and in 16-bit types, where rounding alone moves single tokens by more."""


def probe_ids(known_ids: int, length: int = LENGTH) -> list[int]:
    """The text: random ids below `known_ids`, the same at every call."""
    chance = random.Random(0)
    return [chance.randrange(known_ids) for _ in range(max(2, min(LENGTH, length)))]


def module_logprobs(module: Any, ids: Sequence[int]) -> list[float]:
    """Natural log-probabilities of every token but the first, in one forward pass without a cache."""
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


def compare(found: Sequence[float], wanted: Sequence[float], *, exact: bool, who: str, hint: str) -> float:
    """How far they are apart: the greatest difference where `exact`, else the mean. Raises EngineError, which says that
    `who` doesn't have the trainer's weights, where that is more than rounding."""
    # A value that is no number compares with nothing, so that max() could pass over it.
    differences = [abs(a - b) if math.isfinite(a - b) else math.inf for a, b in zip(found, wanted, strict=True)]
    apart = max(differences) if exact else sum(differences) / len(differences)
    allowed = GREATEST if exact else MEAN
    if apart <= allowed:
        return apart
    kind = "greatest difference" if exact else "mean difference"
    place = differences.index(max(differences))
    raise EngineError(
        f"{who} doesn't have the trainer's weights: over {len(differences)} tokens of a fixed text the {kind} of "
        f"their log-probabilities is {apart:.3g}, more than {allowed:g} (token {place}: {found[place]:.5f}, and "
        f"{wanted[place]:.5f} by the trainer)",
        where="engine",
        hint=hint,
    )
