"""verl's settings as a toolrl config, section by section."""

from __future__ import annotations

import math
import re
from typing import Any

from toolrl_plugin_verl.convert.algorithm import LENGTH, algorithm
from toolrl_plugin_verl.convert.environment import environment
from toolrl_plugin_verl.convert.hydra import Settings
from toolrl_plugin_verl.convert.paths import count_rows, listed, user_path
from toolrl_plugin_verl.convert.report import Report
from toolrl_plugin_verl.convert.values import SMALLEST, flag, number, whole

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_LOGGERS = {"console": "console", "tensorboard": "tensorboard"}
_NO_NAME = re.compile(r"[^\w.+]+", re.ASCII)
DEFAULT_STEPS = 100


def convert(settings: Settings) -> tuple[dict[str, Any], Report]:
    """The config, and what to say of it."""
    report = Report()
    report.lost.extend(dict.fromkeys(settings.problems))  # One file may have several.
    config: dict[str, Any] = {
        "model": _model(settings, report),
        "data": _data(settings, report),
        "environments": {"default": environment(settings, report)},
        "rollout": _rollout(settings, report),
        "algorithm": algorithm(settings, report),
        "trainer": _trainer(settings, report),
        "evaluation": _evaluation(settings, report),
        "observers": _observers(settings, report),
        "run": {"name": _run_name(settings)},
    }
    seed = whole(settings, report, ("data.seed",), 0, least=0)
    if settings.get("data.seed") is not None:
        config["seed"] = seed
    for key in settings.unused():
        report.lose(key)
    return config, report


def _model(settings: Settings, report: Report) -> dict[str, Any]:
    path = settings.get(f"{_MODEL}.path")
    if not isinstance(path, str) or not path:
        report.remark("model.path: the config names no model; ./model stands in its place")
        path = "./model"
    model: dict[str, Any] = {"path": user_path(path)}
    if flag(settings.get(f"{_MODEL}.enable_gradient_checkpointing")):
        model["gradient_checkpointing"] = True
    if flag(settings.get(f"{_MODEL}.trust_remote_code", "data.trust_remote_code")):
        model["trust_remote_code"] = True
    rank = whole(settings, report, (f"{_MODEL}.lora_rank",), 0)
    if rank > 0:
        model["lora"] = {"rank": rank, **_lora(settings, report)}
    if settings.given(f"{_ROLLOUT}.name"):
        name = settings.get(f"{_ROLLOUT}.name")
        more = ": `engine: vllm` comes with toolrl-plugin-vllm" if name == "vllm" else ""
        report.remark(
            f"engine: verl's is {name!r}; here it is `transformers`, the embedded one, unless you name another{more}"
        )
    return model


def _lora(settings: Settings, report: Report) -> dict[str, Any]:
    lora: dict[str, Any] = {"alpha": number(settings, report, (f"{_MODEL}.lora_alpha",), 16.0, least=SMALLEST)}
    targets = listed(settings.get(f"{_MODEL}.target_modules"))
    if targets and targets != ["all-linear"]:
        lora["target_modules"] = targets
    return lora


def _data(settings: Settings, report: Report) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    for ours, files, limit in (
        ("train", "data.train_files", "data.train_max_samples"),
        ("eval", "data.val_files", "data.val_max_samples"),
    ):
        paths = [user_path(path) for path in listed(settings.get(files))]
        remote = [path for path in paths if "://" in path]
        if remote:
            report.lose(files, f"{remote[0]} isn't on this machine; copy it here and name the copy")
            paths = [path for path in paths if path not in remote]
        if not paths:
            settings.get(limit)
            continue
        options: dict[str, Any] = {"path": paths[0] if len(paths) == 1 else paths}
        for key in ("prompt_key", "image_key", "video_key", "reward_fn_key"):
            if settings.given(f"data.{key}"):
                options[key] = str(settings.get(f"data.{key}"))
        most = whole(settings, report, (limit,), -1)
        if most > 0:
            options["limit"] = most
        sources[ours] = {"use": "verl", "options": options}
    for key in ("prompt_key", "image_key", "video_key", "reward_fn_key"):
        settings.get(f"data.{key}")
    if "train" not in sources:
        report.remark("data.train: the config names no data to train on")
    if not flag(settings.get("data.shuffle")):
        sources["shuffle"] = False
    return sources


def _rollout(settings: Settings, report: Report) -> dict[str, Any]:
    response = whole(settings, report, LENGTH, 512, least=1)
    prompt = whole(settings, report, ("data.max_prompt_length", f"{_ROLLOUT}.prompt_length"), 512, least=1)
    rollout: dict[str, Any] = {"max_turn_tokens": response, "max_episode_tokens": prompt + response}
    report.remark(
        f"rollout.max_episode_tokens: verl's max_prompt_length and max_response_length, {prompt} + {response} tokens, "
        "all turns and tool answers included"
    )
    rollout["temperature"] = number(settings, report, (f"{_ROLLOUT}.temperature",), 1.0, least=SMALLEST)
    top_p = number(settings, report, (f"{_ROLLOUT}.top_p",), 1.0, least=SMALLEST, most=1.0)
    if top_p < 1:
        rollout["top_p"] = top_p
    top_k = whole(settings, report, (f"{_ROLLOUT}.top_k",), -1)
    if top_k > 0:
        rollout["top_k"] = top_k
    if str(settings.get(f"{_ROLLOUT}.do_sample")).lower() == "false":
        report.lose(f"{_ROLLOUT}.do_sample", "episodes of training are sampled: equal ones teach nothing")
    return rollout


def _trainer(settings: Settings, report: Report) -> dict[str, Any]:
    batch = whole(settings, report, ("data.train_batch_size",), 1024, least=1)
    mini = whole(settings, report, (f"{_ACTOR}.ppo_mini_batch_size",), 256, least=1)
    steps = _steps(settings, report, batch)
    trainer: dict[str, Any] = {"steps": steps, "prompts_per_step": batch}
    updates = math.ceil(batch / mini)
    if updates > 1:
        trainer["updates_per_step"] = updates
    if whole(settings, report, (f"{_ACTOR}.ppo_epochs",), 1) > 1:
        report.lose(f"{_ACTOR}.ppo_epochs", "an episode is used once")
    trainer |= _optimizer(settings, report, steps)
    if flag(settings.get(f"{_ACTOR}.use_dynamic_bsz")):
        trainer["tokens_per_microbatch"] = whole(
            settings, report, (f"{_ACTOR}.ppo_max_token_len_per_gpu",), 16384, least=1
        )
    else:
        settings.get(f"{_ACTOR}.ppo_max_token_len_per_gpu")
    prefix = f"{_ACTOR}.use_prefix_grouper"
    if settings.get(prefix) is not None and not flag(settings.get(prefix)):
        trainer["share_prefix"] = False  # The default shares wherever the model allows it.
    every = whole(settings, report, ("trainer.save_freq",), -1)
    if every > 0:
        trainer["save_every"] = every
    keep = whole(settings, report, ("trainer.max_actor_ckpt_to_keep",), 0)
    if keep > 0:
        trainer["keep_checkpoints"] = keep
    return trainer


def _optimizer(settings: Settings, report: Report, steps: int) -> dict[str, Any]:
    optim = f"{_ACTOR}.optim"
    result: dict[str, Any] = {
        "learning_rate": number(settings, report, (f"{optim}.lr",), 1e-6, least=SMALLEST),
        "betas": _betas(settings, report),
        "weight_decay": number(settings, report, (f"{optim}.weight_decay",), 0.01),
        "max_grad_norm": number(settings, report, (f"{_ACTOR}.grad_clip", f"{optim}.clip_grad"), 1.0, least=SMALLEST),
    }
    warmup = whole(settings, report, (f"{optim}.lr_warmup_steps",), -1)
    share = number(settings, report, (f"{optim}.lr_warmup_steps_ratio",), 0.0, most=1.0)
    if warmup < 0 and share:
        result["warmup_steps"] = report.warmup(share, steps)
    elif warmup > 0:
        result["warmup_steps"] = warmup
    schedule = settings.get(f"{optim}.lr_scheduler_type", f"{optim}.warmup_style")
    if schedule == "cosine":
        result["schedule"] = "cosine"
        result["min_rate"] = number(settings, report, (f"{optim}.min_lr_ratio",), 0.0, most=1.0)
    elif schedule not in (None, "constant"):
        report.lose(f"{optim}.lr_scheduler_type", f"{schedule!r} isn't there; the rate stays constant")
    settings.get(f"{optim}.min_lr_ratio"), settings.get(f"{optim}.total_training_steps")
    return result


def _steps(settings: Settings, report: Report, batch: int) -> int:
    total = whole(settings, report, ("trainer.total_training_steps",), -1)
    epochs = whole(settings, report, ("trainer.total_epochs",), 30, least=1)
    if total > 0:
        return total
    paths = [user_path(path) for path in listed(settings.get("data.train_files"))]
    rows = count_rows(paths)
    limit = whole(settings, report, ("data.train_max_samples",), -1)
    if rows is not None and limit > 0:
        rows = min(rows, limit)
    if rows is None or rows < batch:
        why = "can't be read here" if rows is None else f"have {rows} rows, less than one batch of {batch}"
        report.remark(
            f"trainer.steps: verl goes {epochs} times through the data, and its files {why}; set it to "
            f"{epochs} × rows / {batch} (now {DEFAULT_STEPS})"
        )
        return DEFAULT_STEPS
    return max(1, epochs * (rows // batch))


def _evaluation(settings: Settings, report: Report) -> dict[str, Any]:
    values = f"{_ROLLOUT}.val_kwargs"
    result: dict[str, Any] = {}
    every = whole(settings, report, ("trainer.test_freq",), -1)
    if every > 0:
        result["every"] = every
    episodes = whole(settings, report, (f"{values}.n",), 1)
    if episodes > 1:
        result["episodes_per_task"] = episodes
    temperature = number(settings, report, (f"{values}.temperature",), 0.0)
    # verl's agent loop looks at the temperature alone.
    greedy = settings.given(f"{values}.do_sample") and not flag(settings.get(f"{values}.do_sample"))
    result["temperature"] = 0.0 if greedy else temperature
    for key, plain in (("top_p", (1, 1.0)), ("top_k", (-1, 0))):
        if settings.get(f"{values}.{key}") not in plain:
            report.lose(f"{values}.{key}", "evaluation samples like the rollout but for its temperature")
    if not flag(settings.get("trainer.val_before_train")) and settings.get("data.val_files"):
        report.lose("trainer.val_before_train", "a run with `data.eval` is evaluated at its start")
    if flag(settings.get("trainer.val_only")):
        report.lose("trainer.val_only", "evaluate without training by `toolrl eval`, with this config")
    return result


def _observers(settings: Settings, report: Report) -> list[Any]:
    observers: list[Any] = []
    for logger in listed(settings.get("trainer.logger")):
        if logger in _LOGGERS:
            observers.append(_LOGGERS[logger])
        else:
            report.lose(
                "trainer.logger", f"{logger!r} isn't there; console and tensorboard are, and metrics.jsonl always"
            )
    if "console" not in observers:
        observers.insert(0, "console")
    options = {
        key: user_path(value)
        for key in ("rollout_data_dir", "validation_data_dir")
        if isinstance(value := settings.get(f"trainer.{key}"), str) and value
    }
    if options:
        observers.append({"use": "verl_dump", "options": options})
    return observers


def _run_name(settings: Settings) -> str:
    given = settings.get("trainer.experiment_name")
    name = _NO_NAME.sub("-", given).strip("-._") if isinstance(given, str) else ""
    return name[:100] or "run"


def _betas(settings: Settings, report: Report) -> list[float]:
    key, default = f"{_ACTOR}.optim.betas", [0.9, 0.999]
    value = settings.get(key)
    plain = isinstance(value, list) and all(type(item) in (int, float) and 0 <= item < 1 for item in value)
    if plain and len(value) == 2:
        return [float(item) for item in value]
    report.lose(key, f"{str(value)[:40]} aren't two numbers below 1; the config has {default}")
    return default
