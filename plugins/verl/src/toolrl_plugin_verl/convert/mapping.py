"""verl's settings as a toolrl config, section by section."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from toolrl_common.conversion import (
    SMALLEST,
    Conversion,
    Number,
    count,
    count_rows,
    listed,
    user_path,
)
from toolrl_plugin_verl.convert.algorithm import LENGTH, algorithm
from toolrl_plugin_verl.convert.environment import environment
from toolrl_plugin_verl.convert.learning import NOTES, OTHERS

_ACTOR = "actor_rollout_ref.actor"
_OPTIM = f"{_ACTOR}.optim"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_COLUMNS = ("prompt_key", "image_key", "video_key", "reward_fn_key")


def convert(
    settings: Conversion, environment_of: Callable[[Conversion], dict[str, Any]] | None = None
) -> tuple[dict[str, Any], Conversion]:
    """Convert all sections. Forks of verl have an `environment_of` their own. Raises ConfigError for a config that
    trains something else."""
    for key, problem in OTHERS.items():
        if settings.get(key) is not None:
            settings.refuse(key, problem, "Configs of verl's own trainers can be converted: main_ppo, main_dapo.")
    config: dict[str, Any] = {
        "model": _model(settings),
        "data": _data(settings),
        "environments": {"default": (environment_of or environment)(settings)},
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
    for key, note in NOTES.items():
        if settings.get(key) not in (None, ""):
            settings.lose(key, note)
            settings.get(key.replace(".path", ".name"))
    settings.lose_unused()
    return config, settings


def _model(settings: Conversion) -> dict[str, Any]:
    model: dict[str, Any] = {"path": settings.model_path(f"{_MODEL}.path")}
    if settings.flag(f"{_MODEL}.enable_gradient_checkpointing"):
        model["gradient_checkpointing"] = True
    if settings.flag(f"{_MODEL}.trust_remote_code", "data.trust_remote_code"):
        model["trust_remote_code"] = True
    rank = settings.numbers(count("rank", f"{_MODEL}.lora_rank", f"{_MODEL}.lora.rank"))
    if not rank:
        settings.idle(*(f"{_MODEL}.{name}" for name in ("lora_alpha", "lora", "target_modules", "exclude_modules")))
    else:
        model["lora"] = {**rank, **_lora(settings)}
    if settings.given(f"{_ROLLOUT}.name"):
        name = settings.get(f"{_ROLLOUT}.name")
        settings.remark(
            f"engine: verl's is {name!r}; here it is `transformers`, the embedded one, unless you name another"
        )
    return model


def _lora(settings: Conversion) -> dict[str, Any]:
    lora: dict[str, Any] = {"alpha": settings.number(f"{_MODEL}.lora_alpha", f"{_MODEL}.lora.alpha", least=SMALLEST)}
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


def _staleness(settings: Conversion) -> dict[str, int]:
    """Convert the bound of verl's asynchronous trainers, which sample while they train."""
    ahead = settings.number("async_training.staleness_threshold", default=0.0)
    if settings.get("trainer.v1.trainer_mode") in ("colocate_async", "separate_async"):
        ahead = settings.number("trainer.v1.sampler.max_off_policy_threshold", default=8.0)
    settings.section("async_training")  # Else of how the weights are sent.
    return {"max_staleness": math.ceil(ahead)} if ahead else {}


def _rollout(settings: Conversion) -> dict[str, Any]:
    response = settings.whole(*LENGTH, least=1)
    prompt = settings.whole("data.max_prompt_length", f"{_ROLLOUT}.prompt_length", least=1)
    filtered, cut = settings.flag("data.filter_overlong_prompts"), settings.get("data.truncation")
    if filtered or cut in ("left", "right", "middle"):
        does = "leaves them out" if filtered else f"cuts them ({cut})"
        settings.remark(
            f"data.train: prompts of more than {prompt} tokens stay whole and leave fewer for the answer; verl {does}"
        )
    return {
        "max_turn_tokens": response,
        "max_episode_tokens": prompt + response,
        **settings.numbers(
            Number("temperature", (f"{_ROLLOUT}.temperature",), least=SMALLEST),
        ),
        **{key: value for key, value in _truncation(settings, _ROLLOUT).items() if value not in (0, 1.0)},
        **_staleness(settings),
    }


def _truncation(settings: Conversion, place: str) -> dict[str, Any]:
    """`top_p` and `top_k`, 1.0 and 0 for none."""
    found = settings.numbers(
        Number("top_p", (f"{place}.top_p",), least=SMALLEST, most=1.0),
        Number("top_k", (f"{place}.top_k",), least=None, whole=True),
    )
    return {**found, "top_k": max(found["top_k"], 0)}


def _trainer(settings: Conversion) -> dict[str, Any]:
    batch, updates = _batch(settings)
    steps = _steps(settings, batch)
    trainer: dict[str, Any] = {"steps": steps, "prompts_per_step": batch}
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


def _batch(settings: Conversion) -> tuple[int, int]:
    """Return the tasks and the updates of a step. The fully asynchronous trainer counts steps in mini-batches."""
    mini = settings.whole(f"{_ACTOR}.ppo_mini_batch_size", least=1)
    rounds = settings.whole("async_training.trigger_parameter_sync_step", default=0)
    if rounds > 0:
        settings.get("data.train_batch_size")
        updates = rounds * settings.whole("async_training.require_batches", default=1, least=1)
        return mini * updates, updates
    batch = settings.whole("data.train_batch_size", least=1)
    return batch, math.ceil(batch / mini)


def _optimizer(settings: Conversion, steps: int) -> dict[str, Any]:
    result = settings.numbers(
        Number("learning_rate", (f"{_OPTIM}.lr",), least=SMALLEST),
        Number("weight_decay", (f"{_OPTIM}.weight_decay",)),
        Number("max_grad_norm", (f"{_ACTOR}.grad_clip", f"{_OPTIM}.clip_grad"), least=SMALLEST),
    )
    result["betas"] = _betas(settings)
    if str(kind := settings.get(f"{_OPTIM}.optimizer")).lower() not in ("adam", "adamw"):
        settings.lose(f"{_OPTIM}.optimizer", f"{kind!r} here, and the config trains by AdamW")
    warmup = settings.whole(f"{_OPTIM}.lr_warmup_steps")
    share = settings.number(f"{_OPTIM}.lr_warmup_steps_ratio", most=1.0)
    if warmup < 0 and share:
        result["warmup_steps"] = settings.warmup(share, steps)
    elif warmup > 0:
        result["warmup_steps"] = warmup
    result |= _schedule(settings, result["learning_rate"])
    settings.get(f"{_OPTIM}.min_lr_ratio", f"{_OPTIM}.total_training_steps")  # Of other schedules.
    return result


def _betas(settings: Conversion) -> list[float]:
    """Convert the decays of AdamW's averages; verl's own in place of a value that can't be."""
    key = f"{_OPTIM}.betas"
    found, default = settings.get(key), settings.defaults[key]
    pair = isinstance(found, list | tuple) and len(found) == 2
    if pair and all(isinstance(it, int | float) and 0 <= it < 1 for it in found):
        return list(found)
    settings.lose(key, f"{str(found)[:40]!r} can't be; the config has {default}")
    return list(default)


def _schedule(settings: Conversion, rate: float) -> dict[str, Any]:
    """Convert the schedule, which Megatron's optimizer calls lr_decay_style."""
    keys = [f"{_OPTIM}.{name}" for name in ("lr_decay_style", "lr_scheduler_type", "warmup_style")]
    key = next((key for key in keys if settings.given(key)), keys[1])
    kind = settings.get(key)
    settings.idle(*keys)  # The others are those of another optimizer.
    least = settings.number(f"{_OPTIM}.min_lr", default=0.0)
    if kind in ("cosine", "linear"):
        share = min(least / rate, 1.0) if least else settings.number(f"{_OPTIM}.min_lr_ratio", most=1.0)
        return {"schedule": kind, "min_rate": share}
    if kind not in (None, "constant"):
        settings.lose(key, f"{kind!r} here, and the config has a constant rate", learned=True)
    return {}


def _steps(settings: Conversion, batch: int) -> int:
    limit = settings.whole("data.train_max_samples")
    rows = count_rows(settings.get("data.train_files"))
    tasks = settings.whole("rollout.total_rollout_steps", default=-1)
    return settings.steps(
        settings.whole("trainer.total_training_steps", default=-(-tasks // batch) if tasks > 0 else -1),
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
