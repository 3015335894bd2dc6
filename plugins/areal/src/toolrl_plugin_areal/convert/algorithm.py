"""AReaL's objective as the section `algorithm`."""

from __future__ import annotations

from typing import Any

from toolrl_common.conversion import SMALLEST, Number, listed, user_path
from toolrl_plugin_areal.convert.settings import ArealConversion

_CAP = 5.0
"""AReaL's bound of a weight where a config names none."""


def algorithm(settings: ArealConversion) -> dict[str, Any]:
    """Convert the section."""
    group, critic = settings.whole("gconfig.n_samples", least=1), settings.given("critic.path")
    advantage = _critic(settings) if critic else _advantage(settings)
    if group < 2 and not critic and "baseline" not in advantage:
        settings.lose("gconfig.n_samples", "one episode of a task has nothing to be compared with; the config takes 8")
        group = 8
    result: dict[str, Any] = {
        "preset": "ppo" if critic else "grpo",
        "group_size": group,
        **advantage,
        "loss_aggregation": "token_mean",
        **_surrogate(settings),
        **_kl(settings),
        **_importance(settings),
        **_teacher(settings),
    }
    if settings.flag("actor.dynamic_sampling") and group > 1:  # A group of one is always flat.
        result |= {"drop_flat_groups": True, "filter_metric": "reward"}
    if settings.flag("dynamic_bs"):
        note = "the start script says which groups are left out; `algorithm.drop_flat_groups` leaves out flat ones"
        settings.lose("dynamic_bs", note)
    if settings.flag("actor.mask_no_eos_with_zero"):
        result["mask_truncated"] = True
    return result | _overlong(settings)


def _surrogate(settings: ArealConversion) -> dict[str, Any]:
    """Convert the clip range and what happens outside of it."""
    low = settings.number("actor.eps_clip", most=1.0)
    result: dict[str, Any] = {"clip_low": low, "clip_high": settings.number("actor.eps_clip_higher", default=low)}
    dual = settings.number("actor.c_clip", default=0.0)
    if settings.flag("actor.use_cispo_loss"):
        result["surrogate"] = "cispo"
    elif dual > 1:
        result["clip_dual"] = dual
    level = settings.get("actor.importance_sampling_level") or "token"
    if level == "sequence":
        result["ratio"] = "sequence"
    elif level != "token":
        settings.lose("actor.importance_sampling_level", f"{level!r} here, and the config has ratios of tokens")
    return result


def _kl(settings: ArealConversion) -> dict[str, Any]:
    """Convert the divergence from the reference, which AReaL takes off the rewards of tokens."""
    coefficient = settings.number("actor.kl_ctl")
    if not coefficient or not settings.given("ref"):
        settings.idle("actor.kl_estimator")
        return {}
    return {"kl_coef": coefficient, "kl_in": "reward"}


def _advantage(settings: ArealConversion) -> dict[str, str]:
    """Convert the baseline and the scale of advantages."""
    norm = "actor.reward_norm" if settings.given("actor.reward_norm") else "actor.adv_norm"
    mean, deviation = (_level(settings, norm, of) for of in ("mean", "std"))
    baseline = {"batch": "batch_mean"}.get(str(mean), "")
    if settings.flag(f"{norm}.mean_leave1out"):
        baseline = "leave_one_out" if mean == "group" else baseline
    if mean not in ("group", "batch"):
        settings.lose(f"{norm}.mean_level", "a reward is set off against its group's mean")
    scale = "none" if deviation is None else "std" if deviation == "group" else "batch_std"
    if mean == "batch" and scale == "std":
        settings.lose(f"{norm}.std_level", "the config takes the deviation of the step")
        scale = "batch_std"
    if norm == "actor.reward_norm" and settings.given("actor.adv_norm"):
        if scale == "none" and _level(settings, "actor.adv_norm", "std") == "batch":
            scale = "advantage_std"  # The mean is 0 by the baseline already, up to the answers' lengths.
        elif scale != "none":
            settings.lose("actor.adv_norm", "advantages are normalised once, by actor.reward_norm", learned=True)
        settings.section("actor.adv_norm")
    return {**({"baseline": baseline} if baseline else {}), "scale": scale}


def _level(settings: ArealConversion, norm: str, of: str) -> str | None:
    """Return the level of a mean or a deviation: `group`, `batch`, or None for not at all."""
    if settings.null(f"{norm}.{of}_level") or not settings.given(norm):
        return None
    return str(settings.get(f"{norm}.{of}_level") or "batch")


def _critic(settings: ArealConversion) -> dict[str, Any]:
    """Convert PPO's critic, whose values are those of tokens."""
    if settings.given("actor.reward_norm"):
        settings.lose("actor.reward_norm", "with a critic rewards stay as they are")
        settings.section("actor.reward_norm")
    optimizer = settings.get("critic.optimizer")
    settings.section("critic.optimizer")
    rate = optimizer.get("lr") if isinstance(optimizer, dict) else None
    critic = settings.numbers(
        Number("learning_rate", ("critic.optimizer.lr", "actor.optimizer.lr"), least=SMALLEST),
        Number("gae_lambda", ("actor.gae_lambda",), most=1.0),
        Number("value_clip", ("critic.eps_clip",), least=SMALLEST),
    )
    if isinstance(rate, int | float) and rate > 0:
        critic["learning_rate"] = float(rate)
    settings.idle("critic.ppo_n_minibatches")
    return {
        "scale": "none" if _level(settings, "actor.adv_norm", "std") is None else "advantage_std",
        "discount": settings.number("actor.discount", least=SMALLEST, most=1.0),
        "critic": {"level": "token", **critic},
    }


def _importance(settings: ArealConversion) -> dict[str, Any]:
    """Convert the weights of the decoupled loss; without it, set what ratios are taken to."""
    if not settings.flag("actor.use_decoupled_loss"):
        settings.idle("actor.rejection_sampling", "actor.behav_imp_weight_cap", "actor.behave_imp_weight_cap")
        return {} if settings.flag("actor.recompute_logprob") else {"old_logprobs": "sampled"}
    settings.flag("actor.recompute_logprob")  # The decoupled loss does in any case.
    if settings.given("actor.rejection_sampling"):
        return _rejection(settings)
    key = "actor.behave_imp_weight_mode"
    mode = settings.get(key) or "token_mask"
    if mode == "disabled":
        return {}
    if mode != "token_mask":
        settings.lose(key, f"{mode!r} here, and the config has token_mask")
    spellings = ("actor.behav_imp_weight_cap", "actor.behave_imp_weight_cap")
    if not settings.given(*spellings):
        settings.remark(
            f"algorithm.importance.cap: the config names no rejection_sampling, without which AReaL had the cap "
            f"{_CAP:g} before 1.0, and has none since"
        )
    cap = settings.number(*spellings, default=_CAP, least=1.0 + 1e-9)
    return {"importance": {"level": "token", "mode": "reject", "cap": cap}}


def _rejection(settings: ArealConversion) -> dict[str, Any]:
    """Convert `rejection_sampling`: weights are cut down to its bounds, or dropped outside of them."""
    place = "actor.rejection_sampling"
    metric, action = settings.get(f"{place}.metric") or "ratio", settings.get(f"{place}.action") or "mask"
    upper = settings.number(f"{place}.upper", default=_CAP, least=1.0 + 1e-9 if metric == "ratio" else 0.0)
    lower = settings.number(f"{place}.lower", default=0.0, least=None)
    sums = {"mean": "mean", "sum": "sequence"}
    by_token = (settings.get(f"{place}.level") or "token") == "token"
    level = "token" if by_token else sums.get(str(settings.get(f"{place}.agg") or "mean"))
    if metric != "ratio" or level is None:
        what = f"{place}.metric" if metric != "ratio" else f"{place}.agg"
        settings.lose(
            what, f"{settings.get(what)!r} has no equal; samples are weighed up to {_CAP:g}, and none is left out"
        )
        return {"importance": {"level": "token", "mode": "truncate", "cap": _CAP}}
    mode = "truncate" if action == "clamp" else "reject"
    weights = {"importance": {"level": level, "mode": mode, "cap": upper}}
    if not 0 < lower < 1:
        return weights
    if action == "clamp":
        settings.lose(f"{place}.lower", f"{lower:g} here, and small weights stay as they are")
        return weights
    return {**weights, "rejection": {"level": level, "low": lower, "high": upper}}


def _overlong(settings: ArealConversion) -> dict[str, Any]:
    """Convert the penalty for length, which AReaL takes off before it scales the reward."""
    if not settings.flag("actor.overlong_reward_penalty"):
        settings.idle("actor.overlong_tokens", "actor.overlong_penalty_factor")
        return {}
    buffer = settings.whole("actor.overlong_tokens", default=0)
    penalty = settings.number("actor.overlong_penalty_factor", default=0.0)
    penalty *= settings.number("actor.reward_scaling", least=None)
    if buffer < 1 or penalty <= 0:
        settings.lose("actor.overlong_reward_penalty", "expected overlong_tokens and a penalty above 0")
        return {}
    tokens = settings.whole("actor.max_new_tokens", "gconfig.max_new_tokens", least=1)
    return {"overlong": {"tokens": tokens, "buffer": buffer, "penalty": penalty}}


def _teacher(settings: ArealConversion) -> dict[str, Any]:
    """Convert the teacher: its divergence is a term of the loss, or alone the advantage."""
    path = settings.get("teacher.path")
    if not isinstance(path, str) or not path:
        return {}
    weight = settings.number("teacher.rl_loss_weight", default=1.0)
    coefficient = settings.number("teacher.distill_loss_weight", default=0.005)
    kind = {"kl_as": "loss" if weight else "advantage", "reward_weight": weight}
    return {"distillation": {"teachers": {"default": {"model": user_path(path)}}, "coef": coefficient, **kind}}


def lora(settings: ArealConversion) -> dict[str, Any]:
    """Convert the adapter to `model.lora`."""
    if not settings.flag("actor.use_lora"):
        settings.idle("actor.lora_rank", "actor.lora_alpha", "actor.target_modules", "actor.peft_type")
        return {}
    rank = settings.whole("actor.lora_rank", default=32, least=1)
    result: dict[str, Any] = {"rank": rank, "alpha": settings.number("actor.lora_alpha", default=16.0, least=SMALLEST)}
    targets = listed(settings.get("actor.target_modules"))
    if str(settings.get("actor.peft_type") or "lora").lower() != "lora":
        settings.lose("actor.peft_type")
    return {"lora": result if targets in ([], ["all-linear"]) else {**result, "target_modules": targets}}
