"""What a sample must be, whichever server gave it: one that isn't would be trained on all the same.

A log-probability above 0 belongs to no distribution, and ratios of probabilities would be computed from it. An id that
the model has no embedding of ends the trainer, on a GPU in a way that no checkpoint can be saved after.
"""

from __future__ import annotations

from collections.abc import Iterable

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling

ROUNDING = 1e-4
"""By so much the log-probability of the surest token may lie above 0."""


def at_most_zero(logprobs: Iterable[float], server: str) -> tuple[float, ...]:
    """Log-probabilities without what rounding put above 0. Raises EngineError for more than that."""
    values = tuple(map(float, logprobs))
    greatest = max(values, default=0.0)
    if greatest > ROUNDING:
        raise EngineError(
            f"{server} gave token {values.index(greatest)} of its answer the log-probability {greatest:g}, and none is "
            "above 0",
            hint="They must be natural logarithms of probabilities, not logits or scores.",
        )
    return tuple(min(value, 0.0) for value in values)


def check(found: Generation, sampling: Sampling, known_ids: int | None, server: str) -> None:
    """Raise EngineError for a sample that can't be one of this request to a model that knows so many ids (None where
    that is unknown)."""
    if len(found.ids) > sampling.max_new_tokens:
        raise EngineError(f"{server} gave {len(found.ids)} tokens, and was asked for {sampling.max_new_tokens} at most")
    if found.finish == "stop" and not found.ids:
        raise EngineError(f"{server} reports that {found.stopped_by!r} ended a generation, and gave no token of it")
    if known_ids is not None and found.ids and max(found.ids) >= known_ids:
        raise EngineError(
            f"{server} gave the token id {max(found.ids)}, and the trainer's model has ids below {known_ids}",
            hint="The server must serve the model that is trained.",
        )
