"""verl's advantage estimator, policy loss, KL and penalties as the section `algorithm`."""

from __future__ import annotations

from typing import Any

from toolrl_common.conversion import SMALLEST, Conversion, Number
from toolrl_plugin_verl.convert.corrections import corrections
from toolrl_plugin_verl.convert.distillation import distillation

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
_OVERLONG = (
    "reward.reward_kwargs.overlong_buffer_cfg",
    "reward_model.reward_kwargs.overlong_buffer_cfg",
    "reward_model.overlong_buffer",
)
"""Sections of verl and its recipes that hold DAPO's penalty for length."""
_LONGEST = ("reward.reward_kwargs.max_resp_len", "reward_model.reward_kwargs.max_resp_len")
MANAGER = ("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
"""Keys of verl and its older versions that name the reward manager."""
LENGTH = ("data.max_response_length", "actor_rollout_ref.rollout.response_length")
"""Tokens of a response, all turns and tool answers together."""


def algorithm(settings: Conversion) -> dict[str, Any]:
    """Convert the section. It holds each of verl's defaults that differs from the preset's."""
    preset, teacher = _preset(settings), distillation(settings)
    alone = preset in _ALONE or (bool(teacher) and not teacher["distillation"]["reward_weight"])
    result: dict[str, Any] = {"preset": preset, "group_size": _group(settings, alone), **teacher}
    by_deviation = settings.flag("algorithm.norm_adv_by_std_in_grpo")
    if (estimator := settings.get("algorithm.adv_estimator")) in _ESTIMATORS:
        result["advantage"] = estimator
    elif preset == "grpo":
        result["scale"] = "std" if by_deviation else "none"
    result["loss_aggregation"] = _loss(settings)
    result |= _surrogate(settings)
    if preset == "ppo":
        result |= _critic(settings)
    else:  # Nothing else has a critic, or looks at what a token earns of later ones.
        settings.idle("critic", "trainer.critic_warmup", "algorithm.lam", "algorithm.gamma")
    result |= _kl(settings)
    entropy = settings.number(f"{_ACTOR}.entropy_coeff", least=None)
    if entropy:
        result["entropy_coef"] = entropy
    result |= _flat_groups(settings, result["group_size"])
    if not settings.flag("algorithm.use_pf_ppo"):
        settings.idle("algorithm.pf_ppo")
    return result | _overlong(settings, "advantage" in result) | corrections(settings, "policy_loss" in result)


def _preset(settings: Conversion) -> str:
    estimator = settings.get("algorithm.adv_estimator")
    preset = _PRESETS.get(str(estimator))
    if preset is None:
        settings.refuse(
            "algorithm.adv_estimator",
            f"toolrl has no estimator {str(estimator)!r}; expected one of {', '.join(_PRESETS)}",
            "Convert with algorithm.adv_estimator=grpo to train with GRPO in its place.",
        )
    if preset == "ppo" and not settings.given("algorithm.adv_estimator"):
        settings.remark(
            "algorithm.preset: the config names no adv_estimator, and verl's default is gae: PPO with a critic; "
            "convert it with algorithm.adv_estimator=grpo for GRPO"
        )
    return preset


def _group(settings: Conversion, alone: bool) -> int:
    """Convert `group_size`, which may be 1 if an episode is compared with no other of its task."""
    key = "actor_rollout_ref.rollout.n"
    group = settings.whole(key, "rollout.n", least=1)
    if group > 1 or alone:
        return group
    settings.lose(key, "one episode of a task has nothing to be compared with; the config takes 8")
    return 8


def _loss(settings: Conversion) -> str:
    mode = str(settings.get(f"{_ACTOR}.loss_agg_mode"))
    if mode not in _LOSSES:
        settings.lose(f"{_ACTOR}.loss_agg_mode", f"{mode!r} isn't there; the config has token_mean")
    return _LOSSES.get(mode, "token_mean")


def _surrogate(settings: Conversion) -> dict[str, Any]:
    """Convert the clip range and the loss. `clip_ratio` counts if low and high aren't given themselves."""
    both = settings.number(f"{_ACTOR}.clip_ratio", most=0.999)
    low = min(settings.number(f"{_ACTOR}.clip_ratio_low", default=both), 1.0)  # No ratio is below 1 - 1.
    high = settings.number(f"{_ACTOR}.clip_ratio_high", default=both)
    dual = settings.number(f"{_ACTOR}.clip_ratio_c", least=1.0 + 1e-9)
    result: dict[str, Any] = {"clip_low": low, "clip_high": high}
    mode = str(settings.get(f"{_ACTOR}.policy_loss.loss_mode") or "vanilla")
    settings.idle(f"{_ACTOR}.policy_loss", f"{_ACTOR}.tau_pos", f"{_ACTOR}.tau_neg")  # Of modes that are refused.
    if mode in ("dppo_tv", "dppo_kl"):
        options = {"divergence": mode.removeprefix("dppo_"), **result, "ratio_cap": dual}
        return {"policy_loss": {"use": "dppo", "options": options}}
    if mode == "gspo":
        return {"ratio": "sequence", **result}
    if mode == "cispo":
        return {"surrogate": "cispo", **result}
    if mode != "vanilla":
        settings.refuse(
            f"{_ACTOR}.policy_loss.loss_mode",
            f"toolrl has no policy loss {mode!r}; expected vanilla, gspo, cispo, dppo_tv or dppo_kl",
            f"Convert with {_ACTOR}.policy_loss.loss_mode=vanilla to train with PPO's loss in its place.",
        )
    return {**result, "clip_dual": dual}


def _overlong(settings: Conversion, estimated: bool) -> dict[str, Any]:
    """Convert DAPO's penalty for length, which verl's reward manager `dapo` alone takes off."""
    place = next((place for place in _OVERLONG if settings.flag(f"{place}.enable")), None)
    longest = settings.whole(*_LONGEST, default=0)
    if place is None:
        settings.idle(*_OVERLONG, *_LONGEST)
        return {}
    buffer, key = settings.whole(f"{place}.len", default=0), f"{place}.enable"
    settings.section(place)  # Else a switch of logs.
    penalty = settings.number(f"{place}.penalty_factor", default=1.0)
    if settings.get(*MANAGER) != "dapo":
        settings.lose(key, "the reward manager isn't dapo, which alone reads it", learned=False)
    elif estimated:
        settings.lose(key, "an advantage estimator of a plugin sees the rewards without it")
    elif buffer < 1:
        settings.lose(f"{place}.len", f"{buffer} can't be; expected at least 1 token")
    elif penalty:
        tokens = longest if longest > 0 else settings.whole(*LENGTH, least=1)
        return {"overlong": {"tokens": tokens, "buffer": buffer, "penalty": penalty}}
    return {}


def _critic(settings: Conversion) -> dict[str, Any]:
    critic = settings.numbers(
        Number("learning_rate", ("critic.optim.lr",), least=SMALLEST),
        Number("gae_lambda", ("algorithm.lam",), most=1.0),
        Number("value_clip", ("critic.cliprange_value",), least=SMALLEST),
        Number("warmup_steps", ("trainer.critic_warmup",), whole=True, above=0),
    )
    if settings.get("critic.model.path") == settings.get("actor_rollout_ref.model.path"):
        settings.idle("critic.model.path")  # The critic is a copy of the policy.
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
        settings.lose("algorithm.use_kl_in_reward", "a run has one KL term, here that of the loss")
    settings.idle("algorithm.kl_ctrl", "algorithm.kl_penalty")
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
    if settings.get("algorithm.kl_ctrl.type") not in (None, "fixed"):
        settings.lose("algorithm.kl_ctrl.type", "the coefficient stays as it is")
    settings.idle("algorithm.kl_ctrl")
    if (estimate := settings.get("algorithm.kl_penalty")) not in (None, "kl", "k1"):
        settings.lose("algorithm.kl_penalty", f"{estimate!r} here, and the divergence in a reward is the k1 estimate")
    return {"kl_coef": coefficient, "kl_in": "reward"} if coefficient else {}


def _flat_groups(settings: Conversion, size: int) -> dict[str, Any]:
    if not settings.flag("algorithm.filter_groups.enable") or size < 2:  # verl keeps groups of one.
        return {}
    accuracy = settings.get("algorithm.filter_groups.metric") == "acc"
    settings.section("algorithm.filter_groups")  # The bounds of its search, which is unbounded here.
    return {"dynamic_sampling": True} | ({} if accuracy else {"filter_metric": "reward"})
