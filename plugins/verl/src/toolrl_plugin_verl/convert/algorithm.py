"""verl's advantage estimator, policy loss, KL and penalties as the section `algorithm`."""

from __future__ import annotations

from typing import Any

from toolrl_plugin_verl.convert.hydra import Settings
from toolrl_plugin_verl.convert.report import Report
from toolrl_plugin_verl.convert.values import SMALLEST, flag, number, whole

_ACTOR = "actor_rollout_ref.actor"
_PRESETS = {
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
    "reinforce_plus_plus": "reinforce_plus_plus",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus_baseline",
    "gae": "ppo",
}
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


def algorithm(settings: Settings, report: Report) -> dict[str, Any]:
    """The section. Everything is said that verl's defaults say otherwise than the preset's."""
    preset = _preset(settings, report)
    result: dict[str, Any] = {"preset": preset, "group_size": _group(settings, report, preset)}
    by_deviation = flag(settings.get("algorithm.norm_adv_by_std_in_grpo"))
    if preset == "grpo":
        result["scale"] = "std" if by_deviation else "none"
    result["loss"] = _loss(settings, report)
    result |= _surrogate(settings, report)
    if preset == "ppo":
        result |= _critic(settings, report)
    result |= _kl(settings, report)
    entropy = number(settings, report, (f"{_ACTOR}.entropy_coeff",), 0.0, least=None)
    if entropy:
        result["entropy_coef"] = entropy
    result |= _flat_groups(settings, report, result["group_size"])
    result |= _overlong(settings, report)
    return result | _importance(settings, report)


def _preset(settings: Settings, report: Report) -> str:
    estimator = settings.get("algorithm.adv_estimator")
    preset = _PRESETS.get(str(estimator))
    if preset is None:
        report.lose("algorithm.adv_estimator", f"{estimator!r} isn't there; the config trains with GRPO")
        return "grpo"
    if preset == "ppo" and not settings.given("algorithm.adv_estimator"):
        report.remark(
            "algorithm.preset: the config names no adv_estimator, and verl's default is gae: PPO with a critic; "
            "convert it with algorithm.adv_estimator=grpo for GRPO"
        )
    if preset in _ALONE:
        report.remark(
            f"algorithm.preset: verl's {estimator} goes token by token; here a turn's tokens share one advantage"
        )
    return preset


def _group(settings: Settings, report: Report, preset: str) -> int:
    key = "actor_rollout_ref.rollout.n"
    group = whole(settings, report, (key,), 1, least=1)
    if group > 1 or preset in _ALONE:
        return group
    report.lose(key, f"{group} episode of a task has nothing to be compared with; the config takes 8")
    return 8


def _loss(settings: Settings, report: Report) -> str:
    mode = settings.get(f"{_ACTOR}.loss_agg_mode")
    if mode not in _LOSSES:
        report.lose(f"{_ACTOR}.loss_agg_mode", f"{mode!r} isn't there; the config takes verl's default, token-mean")
    if settings.get(f"{_ACTOR}.loss_scale_factor") is not None:
        report.lose(f"{_ACTOR}.loss_scale_factor", "`constant` divides by the longest length, by no other number")
    return _LOSSES.get(str(mode), "token_mean")


def _surrogate(settings: Settings, report: Report) -> dict[str, Any]:
    """The clip range, and what lies outside of it. `clip_ratio` counts where low and high aren't given themselves."""
    both = number(settings, report, (f"{_ACTOR}.clip_ratio",), 0.2, most=0.999)
    low = number(settings, report, (f"{_ACTOR}.clip_ratio_low",), both, most=0.999)
    high = number(settings, report, (f"{_ACTOR}.clip_ratio_high",), both)
    result: dict[str, Any] = {"clip_low": low, "clip_high": high}
    mode = settings.get(f"{_ACTOR}.policy_loss.loss_mode")
    if mode == "gspo":
        return {"ratio": "sequence", **result}
    if mode == "cispo":
        return {"surrogate": "cispo", **result}
    if mode not in (None, "vanilla"):
        report.lose(f"{_ACTOR}.policy_loss.loss_mode", f"{mode!r} isn't there; the loss is the clipped surrogate")
    result["clip_dual"] = number(settings, report, (f"{_ACTOR}.clip_ratio_c",), 3.0, least=1.0 + 1e-9)
    return result


def _critic(settings: Settings, report: Report) -> dict[str, Any]:
    critic: dict[str, Any] = {
        "learning_rate": number(settings, report, ("critic.optim.lr",), 1e-5, least=SMALLEST),
        "gae_lambda": number(settings, report, ("algorithm.lam",), 1.0, most=1.0),
        "value_clip": number(settings, report, ("critic.cliprange_value",), 0.5, least=SMALLEST),
    }
    warmup = whole(settings, report, ("trainer.critic_warmup",), 0, least=0)
    if warmup:
        critic["warmup_steps"] = warmup
    return {"discount": number(settings, report, ("algorithm.gamma",), 1.0, least=SMALLEST, most=1.0), "critic": critic}


def _kl(settings: Settings, report: Report) -> dict[str, Any]:
    if flag(settings.get("algorithm.use_kl_in_reward")):
        report.lose(
            "algorithm.use_kl_in_reward", "there is no KL term in the reward; `algorithm.kl_coef` adds one to the loss"
        )
    key = f"{_ACTOR}.kl_loss_type"
    kind, used = str(settings.get(key)), flag(settings.get(f"{_ACTOR}.use_kl_loss"))
    coefficient = number(settings, report, (f"{_ACTOR}.kl_loss_coef",), 0.001)
    if not used:
        return {}
    corrected, estimate = kind.endswith("+"), _ESTIMATES.get(kind.removesuffix("+"))
    if estimate is None:
        report.lose(key, f"{kind!r} isn't there; the KL term is the k3 estimate (low_var_kl)")
    elif estimate == "k1" and not corrected:
        report.lose(key, f"{kind!r} has no gradient without a `+`; the KL term is the k3 estimate (low_var_kl)")
        estimate = None
    result: dict[str, Any] = {"kl_coef": coefficient, "kl_correction": corrected}
    return result if estimate in (None, "k3") else {**result, "kl_estimator": estimate}


def _flat_groups(settings: Settings, report: Report, size: int) -> dict[str, Any]:
    if not flag(settings.get("algorithm.filter_groups.enable")) or size < 2:  # verl keeps groups of one.
        return {}
    report.remark(
        "algorithm.dynamic_sampling: groups of equal filter_metric are set aside, and others sampled until the step is "
        "full, or has sampled eight times its tasks; verl bounds by max_num_gen_batches"
    )
    accuracy = settings.section("algorithm.filter_groups").get("metric") == "acc"
    return {"dynamic_sampling": True} | ({} if accuracy else {"filter_metric": "reward"})


def _overlong(settings: Settings, report: Report) -> dict[str, Any]:
    """The penalty of verl's reward manager `dapo`."""
    place = next((place for place in _OVERLONG if flag(settings.get(f"{place}.enable"))), None)
    for other in _OVERLONG:
        settings.section(other)  # One that is off, or that another goes over, says nothing.
    if place is None:
        return {}
    buffer = whole(settings, report, (f"{place}.len",), 0, least=1)
    penalty = number(settings, report, (f"{place}.penalty_factor",), 0.0)
    longest = ("reward.reward_kwargs.max_resp_len", "reward_model.reward_kwargs.max_resp_len")
    tokens = whole(settings, report, (*longest, *LENGTH), 512, least=1)
    if not 0 < buffer <= tokens or not penalty:
        report.lose(
            f"{place}.enable", f"a buffer of {buffer} of {tokens} tokens and a penalty of {penalty:g} do nothing"
        )
        return {}
    report.remark("algorithm.overlong: it counts sampled tokens; verl's penalty counts the tools' answers, too")
    return {"overlong": {"tokens": tokens, "buffer": buffer, "penalty": penalty}}


def _importance(settings: Settings, report: Report) -> dict[str, Any]:
    place = "algorithm.rollout_correction"
    level = settings.get(f"{place}.rollout_is")
    cap = number(settings, report, (f"{place}.rollout_is_threshold",), 2.0)
    older = ("algorithm.tis_imp_ratio_cap", f"{_ACTOR}.tis_imp_ratio_cap")
    old_cap = number(settings, report, older, -1.0, least=None)
    if level is None and old_cap > 0:
        level, cap = "token", old_cap
    if level in (None, False):
        return {}
    if level not in ("token", "sequence") or cap <= 1:
        report.lose(f"{place}.rollout_is", f"{level!r} with the threshold {cap:g} isn't there")
        return {}
    return {"importance": {"level": level, "mode": "truncate", "cap": cap}}
