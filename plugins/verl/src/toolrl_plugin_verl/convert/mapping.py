"""verl's settings as a toolrl config, section by section."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from toolrl_common.conversion import SMALLEST, Conversion, Number, count, count_rows, listed, user_path
from toolrl_plugin_verl.convert.algorithm import LENGTH, algorithm
from toolrl_plugin_verl.convert.environment import environment

_ACTOR = "actor_rollout_ref.actor"
_OPTIM = f"{_ACTOR}.optim"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_COLUMNS = ("prompt_key", "image_key", "video_key", "reward_fn_key")


def convert(
    settings: Conversion, environment_of: Callable[[Conversion], dict[str, Any]] = environment
) -> tuple[dict[str, Any], Conversion]:
    """The config, and the conversion with its notes. Forks of verl have an `environment_of` their own."""
    config: dict[str, Any] = {
        "model": _model(settings),
        "data": _data(settings),
        "environments": {"default": environment_of(settings)},
        "rollout": _rollout(settings),
        "algorithm": algorithm(settings),
        "trainer": _trainer(settings),
        "evaluation": _evaluation(settings),
        "observers": _observers(settings),
        "run": {"name": settings.run_name("trainer.experiment_name")},
    }
    seed = settings.whole("data.seed", default=0, least=0)
    if settings.get("data.seed") is not None:
        config["seed"] = seed
    for key in settings.unused():
        settings.lose(key)
    return config, settings


def _model(settings: Conversion) -> dict[str, Any]:
    model: dict[str, Any] = {"path": settings.model_path(f"{_MODEL}.path")}
    if settings.flag(f"{_MODEL}.enable_gradient_checkpointing"):
        model["gradient_checkpointing"] = True
    if settings.flag(f"{_MODEL}.trust_remote_code", "data.trust_remote_code"):
        model["trust_remote_code"] = True
    rank = settings.numbers(count("rank", f"{_MODEL}.lora_rank"))
    if rank:
        model["lora"] = {**rank, **_lora(settings)}
    if settings.given(f"{_ROLLOUT}.name"):
        name = settings.get(f"{_ROLLOUT}.name")
        settings.remark(
            f"engine: verl's is {name!r}; here it is `transformers`, the embedded one, unless you name another"
        )
    return model


def _lora(settings: Conversion) -> dict[str, Any]:
    lora: dict[str, Any] = {"alpha": settings.number(f"{_MODEL}.lora_alpha", least=SMALLEST)}
    targets = listed(settings.get(f"{_MODEL}.target_modules"))
    return lora if targets in ([], ["all-linear"]) else {**lora, "target_modules": targets}


def _data(settings: Conversion) -> dict[str, Any]:
    sources: dict[str, Any] = {}
    columns = {key: str(settings.get(f"data.{key}")) for key in _COLUMNS if settings.given(f"data.{key}")}
    for ours, files, limit in (
        ("train", "data.train_files", "data.train_max_samples"),
        ("eval", "data.val_files", "data.val_max_samples"),
    ):
        most = settings.numbers(count("limit", limit))
        given = [user_path(path) for path in listed(settings.get(files))]
        paths = [path for path in given if "://" not in path]
        if len(paths) < len(given):
            settings.lose(files, "copy remote files to this machine, and name the copies")
        if paths:
            options = {"path": paths[0] if len(paths) == 1 else paths, **columns, **most}
            sources[ours] = {"use": "verl", "options": options}
    if "train" not in sources:
        settings.remark("data.train: the config names no data to train on")
    if not settings.flag("data.shuffle"):
        sources["shuffle"] = False
    return sources


def _rollout(settings: Conversion) -> dict[str, Any]:
    response = settings.whole(*LENGTH, least=1)
    prompt = settings.whole("data.max_prompt_length", f"{_ROLLOUT}.prompt_length", least=1)
    return {
        "max_turn_tokens": response,
        "max_episode_tokens": prompt + response,
        **settings.numbers(
            Number("temperature", (f"{_ROLLOUT}.temperature",), least=SMALLEST),
        ),
        **{key: value for key, value in _truncation(settings, _ROLLOUT).items() if value not in (0, 1.0)},
    }


def _truncation(settings: Conversion, place: str) -> dict[str, Any]:
    """`top_p` and `top_k`, 1.0 and 0 for none."""
    found = settings.numbers(
        Number("top_p", (f"{place}.top_p",), least=SMALLEST, most=1.0),
        Number("top_k", (f"{place}.top_k",), least=None, whole=True),
    )
    return {**found, "top_k": max(found["top_k"], 0)}


def _trainer(settings: Conversion) -> dict[str, Any]:
    batch = settings.whole("data.train_batch_size", least=1)
    steps = _steps(settings, batch)
    trainer: dict[str, Any] = {"steps": steps, "prompts_per_step": batch}
    updates = math.ceil(batch / settings.whole(f"{_ACTOR}.ppo_mini_batch_size", least=1))
    if updates > 1:
        trainer["updates_per_step"] = updates
    trainer |= settings.numbers(Number("epochs_per_step", (f"{_ACTOR}.ppo_epochs",), least=1, whole=True, above=1))
    trainer |= _optimizer(settings, steps)
    tokens = settings.numbers(
        Number("tokens_per_microbatch", (f"{_ACTOR}.ppo_max_token_len_per_gpu",), least=1, whole=True)
    )
    if settings.flag(f"{_ACTOR}.use_dynamic_bsz"):
        trainer |= tokens
    prefix = f"{_ACTOR}.use_prefix_grouper"
    if settings.get(prefix) is not None and not settings.flag(prefix):
        trainer["share_prefix"] = False  # The default shares wherever the model allows it.
    return trainer | settings.numbers(
        count("save_every", "trainer.save_freq"), count("keep_checkpoints", "trainer.max_actor_ckpt_to_keep", default=0)
    )


def _optimizer(settings: Conversion, steps: int) -> dict[str, Any]:
    result = settings.numbers(
        Number("learning_rate", (f"{_OPTIM}.lr",), least=SMALLEST),
        Number("weight_decay", (f"{_OPTIM}.weight_decay",)),
        Number("max_grad_norm", (f"{_ACTOR}.grad_clip", f"{_OPTIM}.clip_grad"), least=SMALLEST),
    )
    result["betas"] = settings.get(f"{_OPTIM}.betas")
    warmup = settings.whole(f"{_OPTIM}.lr_warmup_steps")
    share = settings.number(f"{_OPTIM}.lr_warmup_steps_ratio", most=1.0)
    if warmup < 0 and share:
        result["warmup_steps"] = settings.warmup(share, steps)
    elif warmup > 0:
        result["warmup_steps"] = warmup
    schedule = settings.get(f"{_OPTIM}.lr_scheduler_type", f"{_OPTIM}.warmup_style")
    if schedule == "cosine":
        result |= {"schedule": "cosine", "min_rate": settings.number(f"{_OPTIM}.min_lr_ratio", most=1.0)}
    elif schedule not in (None, "constant"):
        settings.lose(f"{_OPTIM}.lr_scheduler_type")
    settings.get(f"{_OPTIM}.min_lr_ratio", f"{_OPTIM}.total_training_steps")  # Of other schedules.
    return result


def _steps(settings: Conversion, batch: int) -> int:
    limit = settings.whole("data.train_max_samples")
    rows = count_rows(settings.get("data.train_files"))
    return settings.steps(
        settings.whole("trainer.total_training_steps", default=-1),
        settings.whole("trainer.total_epochs", least=1),
        batch,
        min(rows, limit) if rows is not None and limit > 0 else rows,
    )[0]


def _evaluation(settings: Conversion) -> dict[str, Any]:
    values = f"{_ROLLOUT}.val_kwargs"
    result = settings.numbers(
        count("every", "trainer.test_freq"),
        Number("episodes_per_task", (f"{values}.n",), least=None, whole=True, above=1),
        Number("temperature", (f"{values}.temperature",)),
    )
    # verl's agent loop looks at the temperature alone.
    if settings.given(f"{values}.do_sample") and not settings.flag(f"{values}.do_sample"):
        result["temperature"] = 0.0
    sampled, own = _truncation(settings, _ROLLOUT), _truncation(settings, values)
    if result["temperature"]:  # A greedy sample isn't truncated.
        result |= {key: value for key, value in own.items() if value != sampled[key]}
    if not settings.flag("trainer.val_before_train") and settings.get("data.val_files"):
        settings.lose("trainer.val_before_train")
    if settings.flag("trainer.val_only"):
        settings.lose("trainer.val_only", "evaluate without training by `toolrl eval`, with this config")
    return result


def _observers(settings: Conversion) -> list[Any]:
    folders = {key: settings.get(f"trainer.{key}") for key in ("rollout_data_dir", "validation_data_dir")}
    options = {key: user_path(folder) for key, folder in folders.items() if isinstance(folder, str) and folder}
    dumps = [{"use": "verl_dump", "options": options}] if options else []
    return [*settings.observers("trainer.logger"), *dumps]
