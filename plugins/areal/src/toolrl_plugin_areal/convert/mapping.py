"""AReaL's settings as a toolrl config, section by section."""

from __future__ import annotations

import re
from typing import Any

from toolrl.builtin.rows import JoinedRows, find_files, open_rows
from toolrl.errors import DataError
from toolrl_plugin_areal.convert.environment import environment
from toolrl_plugin_areal.convert.numbers import SMALLEST, flag, number, whole
from toolrl_plugin_areal.convert.older import importance, staleness
from toolrl_plugin_areal.convert.report import Report
from toolrl_plugin_areal.convert.settings import Settings

_NO_NAME = re.compile(r"[^\w.+]+", re.ASCII)
_NO_LIMIT = 100_000_000
"""AReaL's top_k for none."""
_EVAL_TEMPERATURE = 0.6
"""Of AReaL's script, whatever the config says."""
_IDLE: dict[str, tuple[Any, ...]] = {
    "gconfig.min_new_tokens": (0,),
    "gconfig.greedy": (False,),
    "gconfig.stop": (None, []),
    "gconfig.stop_token_ids": (None, []),
    "actor.init_from_scratch": (False,),
    "stats_logger.wandb.mode": ("disabled",),
    "stats_logger.swanlab.mode": ("disabled",),
    "recover.mode": ("disabled",),
    "actor.use_lora": (False,),
}
"""Values that ask for nothing, so that nothing is lost with them."""
DEFAULT_STEPS = 100


def convert(settings: Settings) -> tuple[dict[str, Any], Report]:
    """The config, and what to say of it."""
    report = Report()
    for key, why in settings.problems:
        report.lose(key, why)
    steps, epoch = _steps(settings, report)
    config: dict[str, Any] = {
        "model": _model(settings, report),
        "data": _data(settings, report),
        "environments": {"default": environment(settings, report)},
        "rollout": _rollout(settings, report),
        "algorithm": _algorithm(settings, report),
        "trainer": _trainer(settings, report, steps, epoch),
        "evaluation": _evaluation(settings, report, epoch),
        "run": {"name": _run_name(settings)},
        "seed": whole(settings, report, "seed", 1),
    }
    for key, values in _IDLE.items():
        if settings.given(key) and settings.get(key) not in values:
            report.lose(key)
    for key in settings.unused():
        report.lose(key)
    return config, report


def _model(settings: Settings, report: Report) -> dict[str, Any]:
    path = settings.get("actor.path")
    if not isinstance(path, str) or not path:
        report.remark("model.path: the config names no model; ./model stands in its place")
        path = "./model"
    model: dict[str, Any] = {"path": _user_path(path)}
    dtype = settings.get("actor.dtype")
    if dtype == "float32":
        model["dtype"] = dtype
    elif dtype != "bfloat16":
        report.lose("actor.dtype", f"{str(dtype)[:40]!r} isn't there; the config leaves it at bfloat16 on a GPU")
    if flag(settings.get("actor.gradient_checkpointing")):
        model["gradient_checkpointing"] = True
    tokenizer = settings.get("tokenizer_path")
    if tokenizer not in (None, "", path):
        report.lose("tokenizer_path", "the tokenizer is the one in the model's folder")
    return model


def _data(settings: Settings, report: Report) -> dict[str, Any]:
    data: dict[str, Any] = {}
    for ours, theirs in (("train", "train_dataset.path"), ("eval", "valid_dataset.path")):
        path = settings.get(theirs)
        if isinstance(path, str) and path:
            data[ours] = {"use": "areal_tir", "options": {"path": _user_path(path)}}
    if "train" not in data:
        report.remark("data.train: the config names no data to train on")
    if not flag(settings.get("train_dataset.shuffle")):
        data["shuffle"] = False
    return data


def _rollout(settings: Settings, report: Report) -> dict[str, Any]:
    longest = whole(settings, report, "tir.max_length", 3000, least=2)
    turn = min(whole(settings, report, "gconfig.max_new_tokens", 16384, least=1), longest)
    report.remark(
        f"rollout.max_turn_tokens: a turn without a call ends the episode after {turn} tokens; AReaL's generation goes "
        f"on until tir.max_length, as it does here with max_turn_tokens: {longest}"
    )
    rollout: dict[str, Any] = {
        "max_turn_tokens": turn,
        "max_episode_tokens": longest,
        "temperature": number(settings, report, "gconfig.temperature", 1.0, least=SMALLEST),
    }
    top_p = number(settings, report, "gconfig.top_p", 1.0, least=SMALLEST, most=1.0)
    if top_p < 1:
        rollout["top_p"] = top_p
    top_k = whole(settings, report, "gconfig.top_k", _NO_LIMIT, least=-1)
    if 0 < top_k < _NO_LIMIT:
        rollout["top_k"] = top_k
    most = settings.get("rollout.max_concurrent_rollouts")
    if type(most) is int and most > 0:
        rollout["concurrency"] = most
    return rollout | staleness(settings, report)


def _algorithm(settings: Settings, report: Report) -> dict[str, Any]:
    group, advantage = whole(settings, report, "gconfig.n_samples", 1, least=1), _advantage(settings, report)
    if group < 2 and "baseline" not in advantage:
        report.lose(
            "gconfig.n_samples", f"{group} episode of a task has nothing to be compared with; the config takes 8"
        )
        group = 8
    low = number(settings, report, "actor.eps_clip", 0.2, most=1.0)
    algorithm: dict[str, Any] = {
        "preset": "grpo",
        "group_size": group,
        **advantage,
        "loss": "token_mean",
        "clip_low": low,
        "clip_high": number(settings, report, "actor.eps_clip_higher", low),
    }
    dual, cispo = number(settings, report, "actor.c_clip", 0.0), flag(settings.get("actor.use_cispo_loss"))
    if cispo:
        algorithm["surrogate"] = "cispo"
    elif dual > 1:
        algorithm["clip_dual"] = dual
    level = settings.get("actor.importance_sampling_level") or "token"
    if level == "sequence":
        algorithm["ratio"] = "sequence"
    elif level != "token":
        report.lose("actor.importance_sampling_level", f"{level!r} isn't there; the config's ratio is of each token")
    kl = number(settings, report, "actor.kl_ctl", 0.1)
    if kl and settings.given("ref"):
        algorithm["kl_coef"] = kl
        report.remark("algorithm.kl_coef: AReaL takes the KL divergence off the reward; here it is a term of the loss")
    if flag(settings.get("actor.dynamic_sampling")):
        if group > 1:
            algorithm |= {"drop_flat_groups": True, "filter_metric": "reward"}
        else:
            report.lose("actor.dynamic_sampling", "the rewards of a group of one are always equal: none would be left")
    return algorithm | _overlong(settings, report) | importance(settings, report)


def _overlong(settings: Settings, report: Report) -> dict[str, Any]:
    """What is taken off the reward of long episodes, and whether those that were cut off are left out."""
    result: dict[str, Any] = {"mask_truncated": True} if flag(settings.get("actor.mask_no_eos_with_zero")) else {}
    buffer = whole(settings, report, "actor.overlong_tokens", 0)
    factor = number(settings, report, "actor.overlong_penalty_factor", 0.0)
    if not flag(settings.get("actor.overlong_reward_penalty")):
        return result
    tokens = whole(settings, report, "gconfig.max_new_tokens", 16384, least=1)
    # AReaL fines before it scales; here the reward that is fined has been scaled.
    penalty = factor * number(settings, report, "actor.reward_scaling", 1.0, least=-1e30)
    if 0 < buffer <= tokens and penalty > 0:
        return {**result, "overlong": {"tokens": tokens, "buffer": buffer, "penalty": penalty}}
    report.lose(
        "actor.overlong_reward_penalty",
        f"overlong_tokens {buffer} of {tokens} and a penalty of {penalty:g} do nothing",
    )
    return result


def _advantage(settings: Settings, report: Report) -> dict[str, str]:
    """What is taken off a reward, and what the difference is divided by."""
    if flag(settings.get("actor.group_reward_norm")):
        return {"scale": "std"}
    norm = "actor.reward_norm" if settings.given("actor.reward_norm") else "actor.adv_norm"
    mean, deviation = (_level(settings, norm, of) for of in ("mean", "std"))
    if mean not in ("group", "batch"):
        what = "None" if mean is None else repr(mean)
        report.lose(f"{norm}.mean_level", f"{what} isn't there: a reward is set off against its group's mean")
    scale = "none" if deviation is None else "std" if deviation == "group" else "batch_std"
    if mean == "batch" and scale == "std":
        what = "the group's deviation, 0 where its rewards are equal, goes with the group's mean only"
        report.lose(f"{norm}.std_level", f"{what}; the config takes that of the step")
        scale = "batch_std"
    return {**({"baseline": "batch_mean"} if mean == "batch" else {}), "scale": scale}


def _level(settings: Settings, norm: str, of: str) -> str | None:
    """Over what AReaL takes a mean or a deviation: `group`, `batch`, or None for not at all."""
    if settings.null(f"{norm}.{of}_level") or not settings.given(norm):
        return None
    return str(settings.get(f"{norm}.{of}_level") or "batch")


def _trainer(settings: Settings, report: Report, steps: int, epoch: int | None) -> dict[str, Any]:
    optim = "actor.optimizer"
    trainer: dict[str, Any] = {"steps": steps, "prompts_per_step": _batch(settings, report)}
    updates = whole(settings, report, "actor.ppo_n_minibatches", 4, least=1)
    if updates > 1:
        trainer["updates_per_step"] = updates
    kind = settings.get(f"{optim}.type")
    if kind != "adam":
        report.lose(f"{optim}.type", f"{str(kind)[:40]!r} isn't there; the optimizer is AdamW")
    trainer |= {
        "learning_rate": number(settings, report, f"{optim}.lr", 1e-3, least=SMALLEST),
        "betas": [number(settings, report, f"{optim}.{name}", default, most=0.999999)
                  for name, default in (("beta1", 0.9), ("beta2", 0.999))],
        "eps": number(settings, report, f"{optim}.eps", 1e-8, least=SMALLEST),
        "weight_decay": number(settings, report, f"{optim}.weight_decay", 0.01),
        "max_grad_norm": number(settings, report, f"{optim}.gradient_clipping", 1.0, least=SMALLEST),
    }  # fmt: skip
    share = number(settings, report, f"{optim}.warmup_steps_proportion", 0.001, most=1.0)
    if share:
        trainer["warmup_steps"] = report.warmup(share, steps)
    schedule = settings.get(f"{optim}.lr_scheduler_type")
    rate = number(settings, report, f"{optim}.min_lr_ratio", 0.0, most=1.0)
    if schedule in ("linear", "cosine"):
        trainer |= {"schedule": schedule, "min_rate": rate}
    elif schedule != "constant":
        report.lose(f"{optim}.lr_scheduler_type", f"{str(schedule)[:40]!r} isn't there; the rate stays constant")
    tokens = settings.get("actor.mb_spec.max_tokens_per_mb")
    if type(tokens) is int and tokens > 0:
        trainer["tokens_per_microbatch"] = tokens
    every = _every(settings, report, "saver", epoch)
    if every:
        trainer["save_every"] = every
    return trainer


def _batch(settings: Settings, report: Report) -> int:
    return whole(settings, report, "train_dataset.batch_size", 1, least=1)


def _steps(settings: Settings, report: Report) -> tuple[int, int | None]:
    """Steps of the run, and of one pass over the data where its files can be read here."""
    batch, epochs = _batch(settings, report), whole(settings, report, "total_train_epochs", 1, least=1)
    given = settings.get("total_train_steps")
    total = given if type(given) is int and given > 0 else None
    rows = _rows(settings.get("train_dataset.path"))
    if rows is None or rows < batch:
        why = "can't be read here" if rows is None else f"has {rows} rows, less than one batch of {batch}"
        if total is None:
            report.remark(
                f"trainer.steps: AReaL goes {epochs} times through the data, and its file {why}; set it to {epochs} × "
                f"rows / {batch} (now {DEFAULT_STEPS})"
            )
        return total or DEFAULT_STEPS, None
    epoch = rows // batch
    return total or epochs * epoch, epoch


def _rows(path: Any) -> int | None:
    """Rows of a file; None where it can't be read here."""
    if not isinstance(path, str) or not path:
        return None
    try:
        return len(JoinedRows([open_rows(file) for file in find_files(path)]))
    except (DataError, OSError):
        return None


def _every(settings: Settings, report: Report, section: str, epoch: int | None) -> int:
    """How many steps lie between two savings or evaluations; 0 where AReaL's don't come by steps."""
    steps, epochs = settings.get(f"{section}.freq_steps"), settings.get(f"{section}.freq_epochs")
    if type(steps) is int and steps > 0:
        return int(steps)
    if type(epochs) is int and epochs > 0:
        if epoch is not None:
            return epochs * epoch
        report.lose(
            f"{section}.freq_epochs", "how many steps an epoch has isn't known, since its data can't be read here"
        )
    if settings.get(f"{section}.freq_secs") is not None:
        report.lose(f"{section}.freq_secs", "saving and evaluation come by steps")
    return 0


def _evaluation(settings: Settings, report: Report, epoch: int | None) -> dict[str, Any]:
    every = _every(settings, report, "evaluator", epoch)
    report.remark(f"evaluation.temperature: {_EVAL_TEMPERATURE}, which stands in AReaL's script and not in its config")
    return {**({"every": every} if every else {}), "temperature": _EVAL_TEMPERATURE}


def _run_name(settings: Settings) -> str:
    given = settings.get("experiment_name")
    name = _NO_NAME.sub("-", given).strip("-._") if isinstance(given, str) else ""
    return name[:100] or "run"


def _user_path(path: str) -> str:
    """A path as a toolrl config has it: `~` as `${HOME}`."""
    return "${HOME}" + path[1:] if path == "~" or path.startswith("~/") else path
