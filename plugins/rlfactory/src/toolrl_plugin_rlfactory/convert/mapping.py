"""RLFactory's settings as a toolrl config, section by section."""

from __future__ import annotations

import math
import re
from typing import Any

from toolrl.builtin.rows import JoinedRows, find_files, open_rows
from toolrl.errors import ToolrlError
from toolrl_plugin_rlfactory.convert.environment import environment
from toolrl_plugin_rlfactory.convert.numbers import flag, listed, number, user_path, whole
from toolrl_plugin_rlfactory.convert.report import Report
from toolrl_plugin_rlfactory.convert.settings import Settings

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_LOGGERS = ("console", "tensorboard")
_NO_NAME = re.compile(r"[^\w.+]+", re.ASCII)
_SMALLEST = 1e-30
"""Bound of what has to be above 0."""
DEFAULT_STEPS = 100
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


def convert(settings: Settings) -> tuple[dict[str, Any], Report]:
    """The config, and what to say of it."""
    report = Report()
    for key, why in settings.problems:
        report.lose(key, why)
    config: dict[str, Any] = {
        "model": _model(settings, report),
        "data": _data(settings, report),
        "environments": {"default": environment(settings, report)},
        "rollout": _rollout(settings, report),
        "algorithm": _algorithm(settings, report),
        "trainer": _trainer(settings, report),
        "evaluation": _evaluation(settings, report),
        "observers": _observers(settings, report),
        "run": {"name": _run_name(settings)},
    }
    for key in settings.unused():
        report.lose(key)
    return config, report


def _model(settings: Settings, report: Report) -> dict[str, Any]:
    path = settings.get(f"{_MODEL}.path")
    if not isinstance(path, str) or not path:
        report.remark("model.path: no model is named; ./model stands in its place")
        path = "./model"
    model: dict[str, Any] = {"path": user_path(path)}
    for key in ("gradient_checkpointing", "trust_remote_code"):
        theirs = "enable_gradient_checkpointing" if key == "gradient_checkpointing" else key
        if flag(settings.get(f"{_MODEL}.{theirs}")):
            model[key] = True
    name = settings.get(f"{_ROLLOUT}.name")
    if name is not None:
        report.remark(f"engine: RLFactory's is {name!r}; here it is `transformers` unless you name another")
    if settings.get(f"{_ACTOR}.state_masking") is False:
        report.lose(f"{_ACTOR}.state_masking", "what tools write is never trained on")
    return model


def _data(settings: Settings, report: Report) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    prompt = settings.get("data.prompt_key", "prompt")
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
        report.remark("data.train: no data to train on are named")
    if settings.get("data.shuffle") is False:
        sources["shuffle"] = False
    return sources


def _rollout(settings: Settings, report: Report) -> dict[str, Any]:
    response = whole(settings, report, "data.max_response_length", 512)
    prompt = whole(settings, report, "data.max_prompt_length", 512)
    report.remark(
        f"rollout.max_episode_tokens: max_prompt_length and max_response_length, {prompt} + {response} tokens; where "
        "RLFactory cuts off the beginning of what is longer, an episode ends here as `context_full`"
    )
    rollout: dict[str, Any] = {
        "max_turn_tokens": response,
        "max_episode_tokens": prompt + response,
        "temperature": number(settings, report, f"{_ROLLOUT}.temperature", 1.0, least=_SMALLEST),
    }
    top_p = number(settings, report, f"{_ROLLOUT}.top_p", 1.0, least=_SMALLEST, most=1.0)
    if settings.get(f"{_ROLLOUT}.top_p") is None:
        report.remark(
            "rollout.top_p: left out, so that what is sampled is what is trained on; RLFactory's default is 0.95"
        )
    top_k = whole(settings, report, f"{_ROLLOUT}.top_k", 0, least=0)
    return {**rollout, **({"top_p": top_p} if top_p < 1 else {}), **({"top_k": top_k} if top_k else {})}


def _algorithm(settings: Settings, report: Report) -> dict[str, Any]:
    estimator = settings.get("algorithm.adv_estimator", "grpo")
    if estimator not in _ESTIMATORS:
        report.lose("algorithm.adv_estimator", f"{estimator!r} isn't there; the config trains with GRPO")
    advantage = _ESTIMATORS.get(str(estimator), {})
    ppo = estimator == "gae"
    if not flag(settings.get("algorithm.norm_adv_by_std_in_grpo", True)) and not advantage:
        advantage = {"scale": "none"}
    clip = number(settings, report, f"{_ACTOR}.clip_ratio", 0.2, most=0.999)
    dual = number(settings, report, f"{_ACTOR}.clip_ratio_c", DEFAULT_DUAL)
    algorithm: dict[str, Any] = {
        "preset": "grpo",
        "group_size": whole(settings, report, f"{_ROLLOUT}.n", 1 if ppo else 8, least=1 if ppo else 2),
        **advantage,
        **(_critic(settings, report) if ppo else {}),
        "loss": _loss(settings, report),
        "clip_low": number(settings, report, f"{_ACTOR}.clip_ratio_low", clip, most=0.999),
        "clip_high": number(settings, report, f"{_ACTOR}.clip_ratio_high", clip),
        **({"clip_dual": dual} if dual > 1 else {}),
    }
    mode = settings.get(f"{_ACTOR}.policy_loss.loss_mode", "vanilla")
    if mode == "gspo":
        algorithm["ratio"] = "sequence"
    elif mode != "vanilla":
        report.lose(f"{_ACTOR}.policy_loss.loss_mode", f"{mode!r} isn't there; the config has the clipped surrogate")
    coefficient = number(settings, report, f"{_ACTOR}.kl_loss_coef", 0.001)
    kind = settings.get(f"{_ACTOR}.kl_loss_type", "low_var_kl")
    if flag(settings.get(f"{_ACTOR}.use_kl_loss")):
        algorithm |= {"kl_coef": coefficient, **_kl(str(kind), report)}
    entropy = number(settings, report, f"{_ACTOR}.entropy_coeff", 0.0)
    return {**algorithm, **({"entropy_coef": entropy} if entropy else {})}


def _critic(settings: Settings, report: Report) -> dict[str, Any]:
    report.remark("algorithm.preset: RLFactory's gae goes token by token; here a turn's tokens share one advantage")
    critic: dict[str, Any] = {
        "learning_rate": number(settings, report, "critic.optim.lr", 1e-5, least=_SMALLEST),
        "gae_lambda": number(settings, report, "algorithm.lam", 1.0, most=1.0),
        "value_clip": number(settings, report, "critic.cliprange_value", 0.5, least=_SMALLEST),
    }
    warmup = whole(settings, report, "trainer.critic_warmup", 0, least=0)
    if warmup:
        critic["warmup_steps"] = warmup
    discount = number(settings, report, "algorithm.gamma", 1.0, least=_SMALLEST, most=1.0)
    return {"discount": discount, "critic": critic}


def _kl(kind: str, report: Report) -> dict[str, Any]:
    """How the KL term is estimated. RLFactory's isn't weighed by the policy's ratio."""
    if kind in ("mse", "k2"):
        return {"kl_estimator": "k2", "kl_correction": False}
    if kind not in ("low_var_kl", "k3"):
        report.lose(f"{_ACTOR}.kl_loss_type", f"{kind!r} isn't there; the KL term is the k3 estimate (low_var_kl)")
    return {"kl_correction": False}


def _loss(settings: Settings, report: Report) -> str:
    """How token losses are averaged."""
    key = f"{_ACTOR}.loss_agg_mode"
    mode = settings.get(key, "token-mean")
    if mode not in _LOSSES:
        report.lose(key, f"{mode!r} isn't there; the config takes RLFactory's default, token-mean")
    return _LOSSES.get(str(mode), "token_mean")


def _trainer(settings: Settings, report: Report) -> dict[str, Any]:
    batch = whole(settings, report, "data.train_batch_size", 128)
    mini = whole(settings, report, f"{_ACTOR}.ppo_mini_batch_size", batch)
    steps = _steps(settings, report, batch)
    trainer: dict[str, Any] = {
        "steps": steps,
        "prompts_per_step": batch,
        "updates_per_step": math.ceil(batch / mini),
        "learning_rate": number(settings, report, f"{_ACTOR}.optim.lr", 1e-6, least=_SMALLEST),
        "weight_decay": number(settings, report, f"{_ACTOR}.optim.weight_decay", 0.01),
        "max_grad_norm": number(settings, report, f"{_ACTOR}.grad_clip", 1.0, least=_SMALLEST),
    }
    warmup = whole(settings, report, f"{_ACTOR}.optim.lr_warmup_steps", -1, least=-1)
    share = number(settings, report, f"{_ACTOR}.optim.lr_warmup_steps_ratio", 0.0, most=1.0)
    if warmup < 0 and share:
        trainer["warmup_steps"] = report.warmup(share, steps)
    elif warmup > 0:
        trainer["warmup_steps"] = warmup
    save = whole(settings, report, "trainer.save_freq", 0, least=0)
    return {**trainer, **({"save_every": save} if save else {})}


def _steps(settings: Settings, report: Report, batch: int) -> int:
    epochs = whole(settings, report, "trainer.total_epochs", 1)
    total = whole(settings, report, "trainer.total_training_steps", 0, least=0)
    if total:
        return total
    rows = _rows(listed(settings.get("data.train_files")))
    if rows is not None and rows >= batch:
        return epochs * (rows // batch)
    report.remark(
        f"trainer.steps: RLFactory goes {epochs} times through the data, which can't be read here or is less than one "
        f"batch; set it to {epochs} × rows / {batch} (now {DEFAULT_STEPS})"
    )
    return DEFAULT_STEPS


def _rows(paths: list[str]) -> int | None:
    """Rows of the data; None where they can't be counted here."""
    try:
        return len(JoinedRows([open_rows(file) for file in find_files(paths)])) if paths else None
    except (ToolrlError, OSError):
        return None


def _evaluation(settings: Settings, report: Report) -> dict[str, Any]:
    every = whole(settings, report, "trainer.test_freq", 0, least=0)
    if settings.get("trainer.val_before_train") is False and settings.get("data.val_files"):
        report.lose("trainer.val_before_train", "a run with `data.eval` is evaluated at its start")
    temperature = number(settings, report, f"{_ROLLOUT}.val_kwargs.temperature", 0.0)
    return {**({"every": every} if every else {}), "temperature": temperature}


def _observers(settings: Settings, report: Report) -> list[str]:
    observers = ["console"]
    for logger in listed(settings.get("trainer.logger")):
        if logger not in _LOGGERS:
            why = f"{logger!r} isn't there; console and tensorboard are, and metrics.jsonl always"
            report.lose("trainer.logger", why)
        elif logger not in observers:
            observers.append(logger)
    return observers


def _run_name(settings: Settings) -> str:
    given = settings.get("trainer.experiment_name")
    name = _NO_NAME.sub("-", given).strip("-._") if isinstance(given, str) else ""
    return name[:100] or "run"
