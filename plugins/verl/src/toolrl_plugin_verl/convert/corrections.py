"""verl's `rollout_correction`: weights for samples of another policy, and which of them are left out."""

from __future__ import annotations

from typing import Any

from toolrl_common.conversion import Conversion

_PLACE = "algorithm.rollout_correction"
_OLD_CAP = "actor_rollout_ref.actor.tis_imp_ratio_cap"
_LEVELS = {"token_k1": "token", "seq_sum_k1": "sequence", "seq_mean_k1": "mean"}
"""verl's name of a rejection to toolrl's level; its bounds are those of the rollout's probability over the policy's."""
_OLD_LEVELS = {"token": "token", "sequence": "sequence", "geometric": "mean"}
"""Levels by the names of older versions, whose bounds are those of the inverse."""


def corrections(settings: Conversion, own_loss: bool) -> dict[str, Any]:
    """Convert to `importance`, `rejection` and `old_logprobs`. A loss of a plugin weighs samples itself."""
    as_sampled = settings.flag("actor_rollout_ref.actor.use_rollout_log_probs")
    if not settings.flag(f"{_PLACE}.bypass_mode", default=as_sampled):
        settings.idle(f"{_PLACE}.loss_type")
        weights, rejection = _weights(settings, own_loss), _rejection(settings)
        if "rejection" in weights and rejection:
            settings.lose(
                f"{_PLACE}.rollout_is_threshold", "its lower bound isn't there, as rollout_rs leaves out samples"
            )
        return weights | rejection
    if settings.get(f"{_PLACE}.loss_type") not in (None, "ppo_clip"):
        settings.lose(f"{_PLACE}.loss_type", "the config trains with PPO's loss")
    # The ratio to the rollout's own log-probabilities leaves nothing for weights to account for.
    settings.idle(*(f"{_PLACE}.rollout_is{end}" for end in ("", "_threshold", "_batch_normalize")))
    return {"old_logprobs": "sampled", **_rejection(settings)}


def _weights(settings: Conversion, own_loss: bool) -> dict[str, Any]:
    key = f"{_PLACE}.rollout_is"
    level, bounds = settings.get(key), _bounds(settings.get(f"{key}_threshold"))
    if level in (None, False):
        settings.idle(f"{key}_threshold", f"{key}_batch_normalize")
        old = settings.number(_OLD_CAP, default=0.0, least=None)
        level, bounds = ("token", (None, old)) if old > 1 else (None, None)
    if level is None:
        return {}
    if level not in ("token", "sequence"):
        settings.lose(key, f"{level!r} isn't there: samples aren't weighed")
    elif bounds is None or bounds[1] <= 1 or (bounds[0] or 0) >= 1:
        settings.lose(f"{key}_threshold", "expected a cap above 1, and a lower bound below: samples aren't weighed")
    elif own_loss:
        settings.lose(key, "dppo weighs samples by their probabilities as sampled already")
    else:
        low, cap = bounds
        weights = {"importance": {"level": level, "mode": "truncate", "cap": cap}}
        return weights if low is None else {**weights, "rejection": {"level": level, "low": low, "high": cap}}
    return {}


def _rejection(settings: Conversion) -> dict[str, Any]:
    key = f"{_PLACE}.rollout_rs"
    name, bounds = settings.get(key), _bounds(settings.get(f"{key}_threshold"))
    lower = settings.number(f"{key}_threshold_lower", default=0.0)
    if name in (None, False, "null"):
        settings.idle(f"{key}_threshold", f"{key}_threshold_lower")
        return {}
    level = (_LEVELS | _OLD_LEVELS).get(str(name))
    if bounds is None or level is None:
        settings.lose(key, f"{name!r} has no equal; `algorithm.rejection` knows {', '.join(_LEVELS)}")
        return {}
    low, high = bounds[0] or lower or 1 / bounds[1], bounds[1]
    if str(name) in _LEVELS:
        low, high = 1 / high, 1 / low
    if not 0 <= low < 1 < high:
        settings.lose(f"{key}_threshold", "expected bounds below and above 1")
        return {}
    return {"rejection": {"level": level, "low": round(low, 9), "high": round(high, 9)}}


def _bounds(value: Any) -> tuple[float | None, float] | None:
    """Split `2.0` or `0.5_2.0` into lower and upper bound; None for what is neither."""
    low, _, high = str(value).rpartition("_")
    try:
        found = (float(low) if low else None, float(high))
    except ValueError:
        return None
    return found if all(it is None or 0 < it < float("inf") for it in found) else None
