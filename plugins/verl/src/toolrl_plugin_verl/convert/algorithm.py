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
_OVERLONG = (
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
)


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
    result |= _overlong(settings)
    if settings.get("algorithm.gdpo_reward_keys"):
        settings.lose(
            "algorithm.gdpo_reward_keys",
            "`gdpo` compares what each reward function gives: make each key one of its own",
        )
    return result | _importance(settings, weighed="policy_loss" in result)


def _preset(settings: Conversion) -> str:
    estimator = settings.get("algorithm.adv_estimator")
    preset = _PRESETS.get(str(estimator))
    if preset is None:
        settings.lose("algorithm.adv_estimator", f"{estimator!r} isn't there; the config trains with GRPO")
        return "grpo"
    if preset == "ppo" and not settings.given("algorithm.adv_estimator"):
        settings.remark(
            "algorithm.preset: the config names no adv_estimator, and verl's default is gae: PPO with a critic; "
            "convert it with algorithm.adv_estimator=grpo for GRPO"
        )
    if preset in _ALONE:
        settings.remark(
            f"algorithm.preset: verl's {estimator} goes token by token; here a turn's tokens share one advantage"
        )
    return preset


def _group(settings: Conversion, preset: str) -> int:
    key = "actor_rollout_ref.rollout.n"
    group = settings.whole(key, least=1)
    if group > 1 or preset in _ALONE:
        return group
    settings.lose(key, f"{group} episode of a task has nothing to be compared with; the config takes 8")
    return 8


def _loss(settings: Conversion) -> str:
    mode = settings.get(f"{_ACTOR}.loss_agg_mode")
    if mode not in _LOSSES:
        settings.lose(f"{_ACTOR}.loss_agg_mode", f"{mode!r} isn't there; the config takes verl's default, token-mean")
    if settings.get(f"{_ACTOR}.loss_scale_factor") is not None:
        settings.lose(f"{_ACTOR}.loss_scale_factor", "`constant` divides by the longest length, by no other number")
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
    if mode in ("dppo_tv", "dppo_kl"):
        settings.remark(
            "algorithm.policy_loss: dppo compares with the probabilities as sampled, as verl's bypass_mode does"
        )
        cap = settings.number(f"{_ACTOR}.clip_ratio_c", least=1.0 + 1e-9)
        return {"policy_loss": {"use": "dppo", "options": {"divergence": str(mode)[-2:], **result, "ratio_cap": cap}}}
    if mode not in (None, "vanilla"):
        settings.lose(f"{_ACTOR}.policy_loss.loss_mode", f"{mode!r} isn't there; the loss is the clipped surrogate")
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
        settings.lose(
            "algorithm.use_kl_in_reward", "the config has a KL term in the loss too, and one of the two is kept"
        )
    if not used:
        return {}
    corrected, estimate = kind.endswith("+"), _ESTIMATES.get(kind.removesuffix("+"))
    if estimate is None:
        settings.lose(key, f"{kind!r} isn't there; the KL term is the k3 estimate (low_var_kl)")
    elif estimate == "k1" and not corrected:
        settings.lose(key, f"{kind!r} has no gradient without a `+`; the KL term is the k3 estimate (low_var_kl)")
        estimate = None
    result: dict[str, Any] = {"kl_coef": coefficient, "kl_correction": corrected}
    return result if estimate in (None, "k3") else {**result, "kl_estimator": estimate}


def _kl_in_reward(settings: Conversion) -> dict[str, Any]:
    for name, taken in (("kl_penalty", ("kl", "k1")), ("kl_ctrl.type", ("fixed",))):
        value = str(settings.get(f"algorithm.{name}", default=taken[0]))
        if value not in taken:
            settings.lose(f"algorithm.{name}", f"{value[:40]!r} isn't there; the KL in the reward is {taken[0]}")
    coefficient = settings.number("algorithm.kl_ctrl.kl_coef", default=0.001)
    return {"kl_coef": coefficient, "kl_in": "reward"} if coefficient else {}


def _flat_groups(settings: Conversion, size: int) -> dict[str, Any]:
    if not settings.flag("algorithm.filter_groups.enable") or size < 2:  # verl keeps groups of one.
        return {}
    settings.remark(
        "algorithm.dynamic_sampling: groups of equal filter_metric are set aside, and others sampled until the step is "
        "full, or has sampled eight times its tasks; verl bounds by max_num_gen_batches"
    )
    accuracy = settings.section("algorithm.filter_groups").get("metric") == "acc"
    return {"dynamic_sampling": True} | ({} if accuracy else {"filter_metric": "reward"})


def _overlong(settings: Conversion) -> dict[str, Any]:
    """The penalty of verl's reward manager `dapo`."""
    place = next((place for place in _OVERLONG if settings.flag(f"{place}.enable")), None)
    for other in _OVERLONG:
        settings.section(other)  # Read, so that one that is off isn't reported as lost.
    if place is None:
        return {}
    buffer = settings.whole(f"{place}.len", default=0, least=1)
    penalty = settings.number(f"{place}.penalty_factor", default=0.0)
    longest = ("reward.reward_kwargs.max_resp_len", "reward_model.reward_kwargs.max_resp_len")
    tokens = settings.whole(*longest, *LENGTH, least=1)
    if not 0 < buffer <= tokens or not penalty:
        settings.lose(
            f"{place}.enable", f"a buffer of {buffer} of {tokens} tokens and a penalty of {penalty:g} do nothing"
        )
        return {}
    settings.remark("algorithm.overlong: it counts sampled tokens; verl's penalty counts the tools' answers, too")
    return {"overlong": {"tokens": tokens, "buffer": buffer, "penalty": penalty}}


def _importance(settings: Conversion, *, weighed: bool) -> dict[str, Any]:
    place = "algorithm.rollout_correction"
    level = settings.get(f"{place}.rollout_is")
    cap = settings.number(f"{place}.rollout_is_threshold")
    older = ("algorithm.tis_imp_ratio_cap", f"{_ACTOR}.tis_imp_ratio_cap")
    old_cap = settings.number(*older, default=-1.0, least=None)
    if level is None and old_cap > 0:
        level, cap = "token", old_cap
    if level in (None, False):
        return {}
    if weighed:
        settings.lose(
            f"{place}.rollout_is", "dppo's ratio is to the probabilities as sampled, which weighs samples already"
        )
        return {}
    if level not in ("token", "sequence") or cap <= 1:
        settings.lose(f"{place}.rollout_is", f"{level!r} with the threshold {cap:g} isn't there")
        return {}
    return {"importance": {"level": level, "mode": "truncate", "cap": cap}}
