"""RLFactory's settings as a toolrl config, section by section."""

from __future__ import annotations

import math
from typing import Any

from toolrl_common.conversion import SMALLEST, Number, count, count_rows, listed, user_path
from toolrl_plugin_rlfactory.convert.conversion import RLFactoryConversion
from toolrl_plugin_rlfactory.convert.environment import environment

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
DEFAULT_DUAL = 3.0
_ESTIMATORS: dict[str, dict[str, str]] = {
    "grpo": {},
    "rloo": {"baseline": "leave_one_out", "scale": "none"},
    "reinforce_plus_plus": {"baseline": "batch_mean", "scale": "advantage_std"},
    "reinforce_plus_plus_baseline": {"scale": "advantage_std"},
    "gae": {"preset": "ppo"},
}
"""By RLFactory's name, what differs from GRPO."""
_LOSSES = {"token-mean": "token_mean", "seq-mean-token-mean": "sequence_mean", "seq-mean-token-sum": "sequence_sum"}


def convert(settings: RLFactoryConversion) -> tuple[dict[str, Any], RLFactoryConversion]:
    """The config, and what to say of it."""
    config: dict[str, Any] = {
        "model": _model(settings),
        "data": _data(settings),
        "environments": {"default": environment(settings)},
        "rollout": _rollout(settings),
        "algorithm": _algorithm(settings),
        "trainer": _trainer(settings),
        "evaluation": _evaluation(settings),
        "observers": settings.observers("trainer.logger"),
        "run": {"name": settings.run_name("trainer.experiment_name")},
    }
    for key in settings.unused():
        settings.lose(key)
    return config, settings


def _model(settings: RLFactoryConversion) -> dict[str, Any]:
    model: dict[str, Any] = {"path": settings.model_path(f"{_MODEL}.path")}
    for key in ("gradient_checkpointing", "trust_remote_code"):
        theirs = "enable_gradient_checkpointing" if key == "gradient_checkpointing" else key
        if settings.flag(f"{_MODEL}.{theirs}"):
            model[key] = True
    name = settings.get(f"{_ROLLOUT}.name")
    if name is not None:
        settings.remark(f"engine: RLFactory's is {name!r}; here it is `transformers` unless you name another")
    if settings.get(f"{_ACTOR}.state_masking") is False:
        settings.lose(f"{_ACTOR}.state_masking", "what tools write is never trained on")
    return model


def _data(settings: RLFactoryConversion) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    prompt = settings.get("data.prompt_key", default="prompt")
    for ours, theirs in (("train", "data.train_files"), ("eval", "data.val_files")):
        paths = [user_path(path) for path in listed(settings.get(theirs))]
        if not paths:
            continue
        rows = all(path.endswith((".jsonl", ".json")) for path in paths)
        options = {
            "path": paths[0] if len(paths) == 1 else paths,
            "fields": {"prompt": str(prompt), "answer": "reward_model.ground_truth"},
        }
        sources[ours] = {"use": "jsonl" if rows else "parquet", "options": options}
    if "train" not in sources:
        settings.remark("data.train: no data to train on are named")
    if settings.get("data.shuffle") is False:
        sources["shuffle"] = False
    return sources


def _rollout(settings: RLFactoryConversion) -> dict[str, Any]:
    response = settings.whole("data.max_response_length", default=512)
    prompt = settings.whole("data.max_prompt_length", default=512)
    settings.remark(
        f"rollout.max_episode_tokens: max_prompt_length and max_response_length, {prompt} + {response} tokens; where "
        "RLFactory cuts off the beginning of what is longer, an episode ends here as `context_full`"
    )
    if settings.get(f"{_ROLLOUT}.top_p") is None:
        settings.remark(
            "rollout.top_p: left out, so that what is sampled is what is trained on; RLFactory's default is 0.95"
        )
    sampling = settings.numbers(
        Number("temperature", (f"{_ROLLOUT}.temperature",), 1.0, least=SMALLEST),
        Number("top_p", (f"{_ROLLOUT}.top_p",), 1.0, least=SMALLEST, most=1.0, below=1.0),
        count("top_k", f"{_ROLLOUT}.top_k", default=0),
    )
    return {"max_turn_tokens": response, "max_episode_tokens": prompt + response, **sampling}


def _algorithm(settings: RLFactoryConversion) -> dict[str, Any]:
    estimator = settings.get("algorithm.adv_estimator", default="grpo")
    if estimator not in _ESTIMATORS:
        settings.lose("algorithm.adv_estimator", f"{estimator!r} isn't there; the config trains with GRPO")
    advantage = _ESTIMATORS.get(str(estimator), {})
    ppo = estimator == "gae"
    if not settings.flag("algorithm.norm_adv_by_std_in_grpo", default=True) and not advantage:
        advantage = {"scale": "none"}
    clip = settings.number(f"{_ACTOR}.clip_ratio", default=0.2, most=0.999)
    dual = settings.number(f"{_ACTOR}.clip_ratio_c", default=DEFAULT_DUAL)
    algorithm: dict[str, Any] = {
        "preset": "grpo",
        "group_size": settings.whole(f"{_ROLLOUT}.n", default=1 if ppo else 8, least=1 if ppo else 2),
        **advantage,
        **(_critic(settings) if ppo else {}),
        "loss_aggregation": _loss(settings),
        "clip_low": settings.number(f"{_ACTOR}.clip_ratio_low", default=clip, most=0.999),
        "clip_high": settings.number(f"{_ACTOR}.clip_ratio_high", default=clip),
        **({"clip_dual": dual} if dual > 1 else {}),
    }
    mode = settings.get(f"{_ACTOR}.policy_loss.loss_mode", default="vanilla")
    if mode == "gspo":
        algorithm["ratio"] = "sequence"
    elif mode != "vanilla":
        settings.lose(f"{_ACTOR}.policy_loss.loss_mode", f"{mode!r} isn't there; the config has the clipped surrogate")
    coefficient = settings.number(f"{_ACTOR}.kl_loss_coef", default=0.001)
    kind = settings.get(f"{_ACTOR}.kl_loss_type", default="low_var_kl")
    if settings.flag(f"{_ACTOR}.use_kl_loss"):
        algorithm |= {"kl_coef": coefficient, **_kl(str(kind), settings)}
    entropy = settings.number(f"{_ACTOR}.entropy_coeff", default=0.0)
    return {**algorithm, **({"entropy_coef": entropy} if entropy else {})}


def _critic(settings: RLFactoryConversion) -> dict[str, Any]:
    settings.remark("algorithm.preset: RLFactory's gae goes token by token; here a turn's tokens share one advantage")
    critic = settings.numbers(
        Number("learning_rate", ("critic.optim.lr",), 1e-5, least=SMALLEST),
        Number("gae_lambda", ("algorithm.lam",), 1.0, most=1.0),
        Number("value_clip", ("critic.cliprange_value",), 0.5, least=SMALLEST),
        Number("warmup_steps", ("trainer.critic_warmup",), 0, whole=True, above=0),
    )
    return {"discount": settings.number("algorithm.gamma", default=1.0, least=SMALLEST, most=1.0), "critic": critic}


def _kl(kind: str, settings: RLFactoryConversion) -> dict[str, Any]:
    """How the KL term is estimated. RLFactory's isn't weighed by the policy's ratio."""
    if kind in ("mse", "k2"):
        return {"kl_estimator": "k2", "kl_correction": False}
    if kind not in ("low_var_kl", "k3"):
        settings.lose(f"{_ACTOR}.kl_loss_type", f"{kind!r} isn't there; the KL term is the k3 estimate (low_var_kl)")
    return {"kl_correction": False}


def _loss(settings: RLFactoryConversion) -> str:
    """How token losses are averaged."""
    key = f"{_ACTOR}.loss_agg_mode"
    mode = settings.get(key, default="token-mean")
    if mode not in _LOSSES:
        settings.lose(key, f"{mode!r} isn't there; the config takes RLFactory's default, token-mean")
    return _LOSSES.get(str(mode), "token_mean")


def _trainer(settings: RLFactoryConversion) -> dict[str, Any]:
    batch = settings.whole("data.train_batch_size", default=128)
    mini = settings.whole(f"{_ACTOR}.ppo_mini_batch_size", default=batch)
    steps, _ = settings.steps(
        settings.whole("trainer.total_training_steps", default=0, least=0),
        settings.whole("trainer.total_epochs", default=1),
        batch,
        count_rows(settings.get("data.train_files")),
    )
    trainer: dict[str, Any] = {
        "steps": steps,
        "prompts_per_step": batch,
        "updates_per_step": math.ceil(batch / mini),
        **settings.numbers(
            Number("learning_rate", (f"{_ACTOR}.optim.lr",), 1e-6, least=SMALLEST),
            Number("weight_decay", (f"{_ACTOR}.optim.weight_decay",), 0.01),
            Number("max_grad_norm", (f"{_ACTOR}.grad_clip",), 1.0, least=SMALLEST),
            count("save_every", "trainer.save_freq", default=0),
        ),
    }
    warmup = settings.whole(f"{_ACTOR}.optim.lr_warmup_steps", default=-1, least=-1)
    share = settings.number(f"{_ACTOR}.optim.lr_warmup_steps_ratio", default=0.0, most=1.0)
    if warmup < 0 and share:
        trainer["warmup_steps"] = settings.warmup(share, steps)
    elif warmup > 0:
        trainer["warmup_steps"] = warmup
    return trainer


def _evaluation(settings: RLFactoryConversion) -> dict[str, Any]:
    if settings.get("trainer.val_before_train") is False and settings.get("data.val_files"):
        settings.lose("trainer.val_before_train", "a run with `data.eval` is evaluated at its start")
    return settings.numbers(
        count("every", "trainer.test_freq", default=0),
        Number("temperature", (f"{_ROLLOUT}.val_kwargs.temperature",), 0.0),
    )
