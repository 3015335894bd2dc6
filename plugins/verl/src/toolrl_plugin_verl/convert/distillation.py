"""verl's on-policy distillation as `algorithm.distillation`."""

from __future__ import annotations

from typing import Any

from toolrl_common.conversion import SMALLEST, Conversion, user_path

_LOSS = "distillation.distillation_loss"
_TEACHERS = "distillation.teacher_models"
_REVERSE = ("k1", "kl", "k2", "mse", "k3", "low_var_kl")
_HINT = "Convert with distillation.enabled=False to train by rewards alone."


def distillation(settings: Conversion) -> dict[str, Any]:
    """Convert the section; nothing without a teacher. Raises ConfigError for a loss that toolrl doesn't have."""
    if not settings.flag("distillation.enabled"):
        settings.idle("distillation")
        return {}
    mode, rewarded = (
        settings.get(f"{_LOSS}.loss_mode") or "k3",
        settings.flag(f"{_LOSS}.use_task_rewards", default=True),
    )
    if mode not in _REVERSE:
        why = f"toolrl doesn't train with the distillation loss {str(mode)!r}; expected one of {', '.join(_REVERSE)}"
        settings.refuse(f"{_LOSS}.loss_mode", why, _HINT)
    by_advantage = settings.flag(f"{_LOSS}.use_policy_gradient")
    if by_advantage and mode not in ("k1", "kl"):
        settings.lose(f"{_LOSS}.loss_mode", f"{mode!r} here, and an advantage is the k1 estimate")
    settings.idle(f"{_LOSS}.topk")
    coefficient = settings.number(f"{_LOSS}.distillation_loss_coef", default=1.0)
    result: dict[str, Any] = {
        "teachers": {"default": {"model": _teacher(settings)}},
        "coef": coefficient if rewarded else 1.0,
        "kl_as": "advantage" if by_advantage else "loss",
        "reward_weight": 1.0 if rewarded else 0.0,
    }
    if settings.get(f"{_LOSS}.loss_max_clamp") is not None:
        result["clip"] = settings.number(f"{_LOSS}.loss_max_clamp", default=1.0, least=SMALLEST)
    return {"distillation": result}


def _teacher(settings: Conversion) -> str:
    """Return the teacher's path. Raises ConfigError unless there is exactly one."""
    given = settings.section(_TEACHERS)
    paths = [path for key, path in given.items() if key.endswith(".model_path") and isinstance(path, str) and path]
    if len(paths) != 1:
        why = f"expected one teacher with a model_path (got {len(paths)})"
        hint = "Teachers of several data sources need an environment each: write `algorithm.distillation` by hand."
        settings.refuse(_TEACHERS, why, f"{hint} {_HINT}")
    return user_path(paths[0])
