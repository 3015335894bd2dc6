"""What AReaL does about samples of older weights: how old they may be, and how the loss weighs them."""

from __future__ import annotations

from typing import Any

from toolrl_plugin_areal.convert.conversion import ArealConversion

_CAP = 5.0
"""AReaL's own bound of a weight."""
_REJECTION = "actor.rejection_sampling"
_MODES: dict[str, tuple[str, str]] = {
    "token_mask": ("token", "reject"),
    "token_truncate": ("token", "truncate"),
    "sequence_mask": ("mean", "reject"),
    "sequence_truncate": ("mean", "truncate"),
}
"""By AReaL's name. Its weight of a sequence is the geometric mean."""


def staleness(settings: ArealConversion) -> dict[str, int]:
    """`rollout.max_staleness`, where episodes may be sampled by weights that are older than those that are trained."""
    versions = settings.whole("rollout.max_head_offpolicyness", default=0, least=0)
    if not versions or not settings.flag("async_training", default=True):
        return {}
    settings.remark(
        f"rollout.max_staleness: {versions}, as rollout.max_head_offpolicyness; sampling goes on while the model is "
        "trained, for which the embedded engine keeps a copy of the weights; 0 lets them take turns"
    )
    return {"max_staleness": versions}


def importance(settings: ArealConversion) -> dict[str, Any]:
    """`algorithm.importance`, where AReaL's loss is the decoupled one."""
    if not settings.flag("actor.use_decoupled_loss"):
        return {}
    found = _rejection(settings) if settings.given(_REJECTION) else _capped(settings)
    if found is None:
        return {}
    level, mode, cap = found
    return {"importance": {"level": level, "mode": mode, "cap": cap}}


def _capped(settings: ArealConversion) -> tuple[str, str, float] | None:
    """By AReaL's older settings, in either spelling."""
    key = "actor.behave_imp_weight_mode"
    mode = str(settings.get(key) or "token_mask")
    spellings = ("actor.behav_imp_weight_cap", "actor.behave_imp_weight_cap")
    caps = [_cap(settings, name) for name in spellings if settings.given(name) or settings.null(name)]
    if mode == "disabled":
        return None
    if mode not in _MODES:
        settings.lose(key, f"{mode[:40]!r} isn't there; the config takes token_mask")
    return (*_MODES.get(mode, _MODES["token_mask"]), caps[0] if caps else _CAP)


def _rejection(settings: ArealConversion) -> tuple[str, str, float] | None:
    level, action = (str(settings.get(f"{_REJECTION}.{name}") or "") for name in ("level", "action"))
    metric, mean = (settings.get(f"{_REJECTION}.{name}") for name in ("metric", "agg"))
    if metric not in (None, "ratio"):
        settings.lose(f"{_REJECTION}.metric", f"{str(metric)[:40]!r} isn't there: weights are bounded by their ratio")
        return None
    if level == "sequence" and mean not in (None, "mean"):
        settings.lose(f"{_REJECTION}.agg", f"{str(mean)[:40]!r} isn't there: a sequence's weight is the geometric mean")
    key = f"{'sequence' if level == 'sequence' else 'token'}_{'truncate' if action == 'clamp' else 'mask'}"
    return (*_MODES[key], _cap(settings, f"{_REJECTION}.upper"))


def _cap(settings: ArealConversion, key: str) -> float:
    if settings.null(key):
        settings.lose(key, f"weights have a bound here; the config takes AReaL's own, {_CAP:g}")
        return _CAP
    return settings.number(key, default=_CAP, least=1.0 + 1e-9)
