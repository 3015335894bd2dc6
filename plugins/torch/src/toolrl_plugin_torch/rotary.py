"""Rotary embeddings with two sets of factors (`longrope`: Phi-3, Phi-4-mini), of which a run uses one.

transformers takes the short or the long factors for a whole forward pass, by its longest row: a sequence's
log-probabilities would depend on those beside it, and keys that are cached before the limit would be wrong behind it.
A run therefore takes one set for all of its sequences, by the most tokens that one may have, as vLLM does by
`max_model_len` (`Phi3LongRoPEScaledRotaryEmbedding`) and llama.cpp by the size of its context.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

_BY_SIDE = (("short_factor", "long_factor"), ("short_mscale", "long_mscale"))
"""Entries of rope_parameters for sequences up to the limit, and beyond it. Phi-3.5-MoE has both pairs."""


def switch_length(config: Any) -> int | None:
    """Most tokens of a sequence that transformers computes with the short factors; None for a model with one set."""
    return min((int(rope["original_max_position_embeddings"]) for rope in _two_sets(config)), default=None)


def with_one_set(config: Any, longest: int) -> dict[str, Any] | None:
    """`rope_parameters` of a text model's config with one set of factors at each length: the long ones if a sequence
    may have `longest` tokens and these are more than `switch_length`. None for a model that has one set."""
    limit = switch_length(config)
    if limit is None:
        return None
    changed: dict[str, Any] = copy.deepcopy(config.rope_parameters)
    for rope in _longropes(changed):
        for short, long in _BY_SIDE:
            if short in rope and long in rope:
                rope[short] = rope[long] = rope[long if longest > limit else short]
    return changed


def rope_types(config: Any) -> list[str]:
    """Kinds of a model's rotary embeddings, such as `default` or `dynamic`."""
    return sorted({str(rope.get("rope_type", "default")) for rope in _ropes(getattr(config, "rope_parameters", None))})


def _two_sets(config: Any) -> list[dict[str, Any]]:
    found = _longropes(getattr(config, "rope_parameters", None))
    return [rope for rope in found if any(rope.get(short) != rope.get(long) for short, long in _BY_SIDE)]


def _longropes(parameters: Any) -> list[dict[str, Any]]:
    return [rope for rope in _ropes(parameters) if rope.get("rope_type") == "longrope"]


def _ropes(parameters: Any) -> Iterator[dict[str, Any]]:
    """The parameters themselves, or those of each kind of layer."""
    for rope in (parameters, *parameters.values()) if isinstance(parameters, dict) else ():
        if isinstance(rope, dict) and "rope_type" in rope:
            yield rope
