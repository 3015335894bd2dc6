"""verl's advantage estimator, policy loss, KL and penalties as the section `algorithm`."""

from __future__ import annotations

from typing import Any

from toolrl_common.conversion import SMALLEST, Conversion, Number

_ACTOR = "actor_rollout_ref.actor"
_PRESETS = {
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "gae": "ppo",
    "gdpo": "grpo",
    "maxrl": "grpo",
}
_ESTIMATORS = ("gdpo", "maxrl")
"""Estimators that are components here."""
_ALONE = ("ppo", "reinforce_plus_plus")
"""What needs no second episode of a task."""
_LOSSES = {
    "token-mean": "token_mean",
    "seq-mean-token-mean": "sequence_mean",
    "seq-mean-token-sum": "sequence_sum",
    "seq-mean-token-sum-norm": "constant",
}
_ESTIMATES = {"low_var_kl": "k3", "k3": "k3", "mse": "k2", "k2": "k2", "kl": "k1", "k1": "k1"}
LENGTH = ("data.max_response_length", "actor_rollout_ref.rollout.response_length")
"""Tokens of a response, all turns and tool answers together."""


def algorithm(settings: Conversion) -> dict[str, Any]:
    """The section. It holds each of verl's defaults that differs from the preset's."""
    preset = _preset(settings)
    result: dict[str, Any] = {"preset": preset, "group_size": _group(settings, preset)}
    by_deviation = settings.flag("algorithm.norm_adv_by_std_in_grpo")
    if (estimator := settings.get("algorithm.adv_estimator")) in _ESTIMATORS:
        result["advantage"] = estimator
    elif preset == "grpo":
        result["scale"] = "std" if by_deviation else "none"
    result["loss_aggregation"] = _loss(settings)
    result |= _surrogate(settings)
    if preset == "ppo":
        result |= _critic(settings)
    result |= _kl(settings)
    entropy = settings.number(f"{_ACTOR}.entropy_coeff", least=None)
    if entropy:
        result["entropy_coef"] = entropy
    result |= _flat_groups(settings, result["group_size"])
    return result | _importance(settings)


def _preset(settings: Conversion) -> str:
    estimator = settings.get("algorithm.adv_estimator")
    preset = _PRESETS.get(str(estimator))
    if preset is None:
        settings.lose("algorithm.adv_estimator", "the config trains with GRPO")
        return "grpo"
    if preset == "ppo" and not settings.given("algorithm.adv_estimator"):
        settings.remark(
            "algorithm.preset: the config names no adv_estimator, and verl's default is gae: PPO with a critic; "
            "convert it with algorithm.adv_estimator=grpo for GRPO"
        )
    return preset


def _group(settings: Conversion, preset: str) -> int:
    key = "actor_rollout_ref.rollout.n"
    group = settings.whole(key, least=1)
    if group > 1 or preset in _ALONE:
        return group
    settings.lose(key, "one episode of a task has nothing to be compared with; the config takes 8")
    return 8


def _loss(settings: Conversion) -> str:
    mode = settings.get(f"{_ACTOR}.loss_agg_mode")
    if mode not in _LOSSES:
        settings.lose(f"{_ACTOR}.loss_agg_mode")
    return _LOSSES.get(str(mode), "token_mean")


def _surrogate(settings: Conversion) -> dict[str, Any]:
    """The clip range, and what lies outside of it. `clip_ratio` counts where low and high aren't given themselves."""
    both = settings.number(f"{_ACTOR}.clip_ratio", most=0.999)
    low = settings.number(f"{_ACTOR}.clip_ratio_low", default=both, most=0.999)
    high = settings.number(f"{_ACTOR}.clip_ratio_high", default=both)
    result: dict[str, Any] = {"clip_low": low, "clip_high": high}
    mode = settings.get(f"{_ACTOR}.policy_loss.loss_mode")
    if mode == "gspo":
        return {"ratio": "sequence", **result}
    if mode == "cispo":
        return {"surrogate": "cispo", **result}
    if mode not in (None, "vanilla"):
        settings.lose(f"{_ACTOR}.policy_loss.loss_mode")
    result["clip_dual"] = settings.number(f"{_ACTOR}.clip_ratio_c", least=1.0 + 1e-9)
    return result


def _critic(settings: Conversion) -> dict[str, Any]:
    critic = settings.numbers(
        Number("learning_rate", ("critic.optim.lr",), least=SMALLEST),
        Number("gae_lambda", ("algorithm.lam",), most=1.0),
        Number("value_clip", ("critic.cliprange_value",), least=SMALLEST),
        Number("warmup_steps", ("trainer.critic_warmup",), whole=True, above=0),
    )
    return {
        "discount": settings.number("algorithm.gamma", least=SMALLEST, most=1.0),
        "critic": {"level": "token", **critic},
    }


def _kl(settings: Conversion) -> dict[str, Any]:
    key = f"{_ACTOR}.kl_loss_type"
    kind, used = str(settings.get(key)), settings.flag(f"{_ACTOR}.use_kl_loss")
    coefficient = settings.number(f"{_ACTOR}.kl_loss_coef")
    if settings.flag("algorithm.use_kl_in_reward"):
        if not used:
            return _kl_in_reward(settings)
        settings.lose("algorithm.use_kl_in_reward")  # A run has one KL term, here that of the loss.
    if not used:
        return {}
    corrected, estimate = kind.endswith("+"), _ESTIMATES.get(kind.removesuffix("+"))
    if estimate is None or (estimate == "k1" and not corrected):  # k1 has no gradient without a `+`.
        settings.lose(key, "the KL term is the k3 estimate")
        estimate = None
    result: dict[str, Any] = {"kl_coef": coefficient, "kl_correction": corrected}
    return result if estimate in (None, "k3") else {**result, "kl_estimator": estimate}


def _kl_in_reward(settings: Conversion) -> dict[str, Any]:
    coefficient = settings.number("algorithm.kl_ctrl.kl_coef", default=0.001)
    return {"kl_coef": coefficient, "kl_in": "reward"} if coefficient else {}


def _flat_groups(settings: Conversion, size: int) -> dict[str, Any]:
    if not settings.flag("algorithm.filter_groups.enable") or size < 2:  # verl keeps groups of one.
        return {}
    accuracy = settings.section("algorithm.filter_groups").get("metric") == "acc"
    return {"dynamic_sampling": True} | ({} if accuracy else {"filter_metric": "reward"})


def _importance(settings: Conversion) -> dict[str, Any]:
    place = "algorithm.rollout_correction"
    level, cap = settings.get(f"{place}.rollout_is"), settings.number(f"{place}.rollout_is_threshold")
    if level in (None, False):
        return {}
    if level not in ("token", "sequence") or cap <= 1:
        settings.lose(f"{place}.rollout_is")
        return {}
    return {"importance": {"level": level, "mode": "truncate", "cap": cap}}
