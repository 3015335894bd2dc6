"""What a sample must be, whichever server gave it: one that isn't would be trained on all the same.

A log-probability above 0 belongs to no distribution, and ratios of probabilities would be computed from it. An id that
the model has no embedding of ends the trainer, on a GPU in a way that no checkpoint can be saved after.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling

M = TypeVar("M", bound=BaseModel)
ROUNDING = 1e-4
"""By so much the log-probability of the surest token may lie above 0."""


def read(model: type[M], answer: Any, server: str, hint: str) -> M:
    """A server's answer. Raises EngineError where it has another form."""
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        place = "".join(f"{part}: " for part in [".".join(map(str, first["loc"]))] if part)
        message = f"{server}'s answer can't be read: {place}{first['msg']} (got {first['input']!r:.300})"
        raise EngineError(message, hint=hint) from None


def generation(
    ids: Sequence[int],
    logprobs: Iterable[float],
    finish: str | None,
    stopped_by: str | int | None,
    versions: Sequence[int],
    *,
    cached: int | None,
    server: str,
) -> Generation:
    """A sample; `versions` has one for each token, or one for all. Raises EngineError where its parts don't fit each
    other, or a log-probability is above 0 by more than rounding."""
    values = tuple(map(float, logprobs))
    if len(values) != len(ids):
        raise EngineError(f"{server} gave {len(ids)} tokens and {len(values)} log-probabilities")
    greatest = max(values, default=0.0)
    if greatest > ROUNDING:
        raise EngineError(
            f"{server} gave token {values.index(greatest)} of its answer the log-probability {greatest:g}, and none is "
            "above 0",
            hint="They must be natural logarithms of probabilities, not logits or scores.",
        )
    if finish not in ("stop", "length", "abort"):
        raise EngineError(f"{server} ended a generation with {finish!r}")
    if finish == "stop" and not ids:
        raise EngineError(f"{server} reports that {stopped_by!r} ended a generation, and gave no token of it")
    if finish == "stop" and stopped_by is None:
        stopped_by = ids[-1]
    return Generation(
        tuple(ids),
        tuple(min(value, 0.0) for value in values),
        finish,  # type: ignore[arg-type]  # one of the three
        stopped_by if finish == "stop" else None,
        versions=tuple(versions) if len(versions) == len(ids) else tuple(versions) * len(ids),
        cached=cached or 0,
    )


def check(found: Generation, sampling: Sampling, known_ids: int | None, server: str) -> None:
    """Raise EngineError for a sample that can't be one of this request to a model that knows so many ids (None where
    that is unknown)."""
    if len(found.ids) > sampling.max_new_tokens:
        raise EngineError(f"{server} gave {len(found.ids)} tokens, and was asked for {sampling.max_new_tokens} at most")
    if known_ids is not None and found.ids and max(found.ids) >= known_ids:
        raise EngineError(
            f"{server} gave the token id {max(found.ids)}, and the trainer's model has ids below {known_ids}",
            hint="The server must serve the model that is trained.",
        )
