"""verl's settings as a toolrl config, section by section."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.conversion import (
    SMALLEST,
    Conversion,
    Number,
    count,
    count_rows,
    expanded,
    listed,
    lose_imports,
    user_path,
)
from toolrl_common.references import kept
from toolrl_plugin_verl.convert.algorithm import LENGTH, algorithm
from toolrl_plugin_verl.imports import check_module, own_file, own_spec, search_folders, stand_in
from toolrl_plugin_verl.tool_yaml import ToolYamlEntry, read_tool_yaml

_ACTOR = "actor_rollout_ref.actor"
_OPTIM = f"{_ACTOR}.optim"
_ROLLOUT = "actor_rollout_ref.rollout"
_MODEL = "actor_rollout_ref.model"
_COLUMNS = ("prompt_key", "image_key", "video_key", "reward_fn_key")


def convert(
    settings: Conversion, environment_of: Callable[[Conversion], dict[str, Any]] | None = None
) -> tuple[dict[str, Any], Conversion]:
    """The config, and the conversion with its notes. Forks of verl have an `environment_of` their own."""
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


# Tools and rewards as one environment.


_MULTI = "actor_rollout_ref.rollout.multi_turn"
_PARSERS = {
    "hermes": "hermes",
    "qwen": "hermes",
    "qwen2_5": "hermes",
    "chatml": "hermes",
    "qwen3_coder": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
}
_TOOL_FILES = (
    f"{_MULTI}.tool_config_path",
    f"{_MULTI}.tool_config",
    "actor_rollout_ref.rollout.tool_kwargs.tools_config_file",
    "actor_rollout_ref.rollout.tool_config_path",
    "actor_rollout_ref.rollout.tool_config",
    "rollout.tool_config_path",
    "rollout.tool_config",
    "data.tool_config_path",
)
"""Where verl, its older versions and its guides name the tools' YAML."""
NO_LIMIT = 32
"""Turns where verl sets no limit."""
CHARACTERS_A_TOKEN = 4


def environment(settings: Conversion) -> dict[str, Any]:
    """`environments.default`."""
    result: dict[str, Any] = dict(_language(settings))
    tools = _tools(settings)
    if tools:
        result["tools"] = tools
    result["rewards"] = [_reward(settings)]
    result["max_turns"] = _max_turns(settings, bool(tools))
    return result


def _language(settings: Conversion) -> dict[str, Any]:
    """Parser and chat format."""
    form = str(settings.get(f"{_MULTI}.format"))
    if form not in _PARSERS:
        settings.lose(f"{_MULTI}.format", "the plugin `renderers` reads and writes calls, chosen by the model's name")
        return {"parser": "renderers", "chat_format": "renderers"}
    kwargs = {**settings.section("data.apply_chat_template_kwargs")}
    options = {"template_kwargs": kwargs} if kwargs else {}
    chat: Any = {"use": "template", "options": options} if options else "template"
    return {"parser": _PARSERS[form], "chat_format": chat}


def _tools(settings: Conversion) -> list[dict[str, Any]]:
    config = settings.get(*_TOOL_FILES)
    functions = settings.get(f"{_MULTI}.function_tool_path", "data.function_tool_path")
    for place in _TOOL_FILES:
        for key in settings.section(place):
            settings.lose(f"{place}.{key}", f"name the tools' YAML by {_MULTI}.tool_config_path")
    policy = _policy(settings)
    options: dict[str, Any] = {}
    if isinstance(config, str) and config:
        options["tool_config_path"] = user_path(config)
        _look_at_tools(options["tool_config_path"], settings)
    if isinstance(functions, str) and functions:
        options["function_tool_path"] = user_path(functions)
        _look_at_python(options["function_tool_path"], settings)
    if not options:
        return []
    tool: dict[str, Any] = {"use": "verl", "options": {**options, "step_rewards": False}, "weight": 0.0}
    if policy:
        tool["policy"] = policy
    return [tool]


def _policy(settings: Conversion) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    length, calls = f"{_MULTI}.max_tool_response_length", f"{_MULTI}.max_parallel_calls"
    characters, side = settings.whole(length, default=0), settings.get(f"{_MULTI}.tool_response_truncate_side")
    if settings.given(length) and characters > 0:
        policy["max_output_tokens"] = math.ceil(characters / CHARACTERS_A_TOKEN)
    if side in ("left", "right"):  # As verl 0.9.1 means it: `left` cuts there.
        policy["truncate"] = "tail" if side == "left" else "head"
    most = settings.whole(calls, default=0)
    if settings.given(calls) and most > 0:
        policy["max_calls_per_turn"] = most
    return policy


def _max_turns(settings: Conversion, tools: bool) -> int:
    # The first guides write `multi_turn: True`.
    enabled = settings.flag(_MULTI) or settings.flag(f"{_MULTI}.enable")
    loop = "actor_rollout_ref.rollout.agent.default_agent_loop"
    if settings.get(loop) not in ("single_turn_agent", "tool_agent"):
        settings.lose(loop)
    given = settings.whole(f"{_MULTI}.max_assistant_turns", f"{_MULTI}.max_turns", default=0)
    users = settings.whole(f"{_MULTI}.max_user_turns", default=0)
    limits = [limit for limit in (given, users + 1 if users > 0 else 0) if limit > 0]
    if limits:
        return min(limits)
    return NO_LIMIT if tools or enabled else 1


def _reward(settings: Conversion) -> Any:
    options: dict[str, Any] = {}
    path = settings.get("custom_reward_function.path", "reward.custom_reward_function.path")
    name = settings.get("custom_reward_function.name", "reward.custom_reward_function.name")
    kwargs = {
        **settings.section("custom_reward_function.reward_kwargs"),
        **settings.section("reward.custom_reward_function.reward_kwargs"),
    }
    if settings.flag("reward_model.enable", "reward.reward_model.enable"):
        settings.lose("reward_model.enable", "the config scores by function alone")
    manager = settings.get("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
    if manager not in (None, "naive", "batch", "prime", "dapo"):
        settings.lose("reward_model.reward_manager")
    sandbox = _sandbox(settings)
    if isinstance(path, str) and path:
        options["path"] = user_path(path)
        _look_at_python(options["path"], settings)
        if isinstance(name, str) and name and name != "compute_score":
            options["name"] = name
        if kwargs:
            options["reward_kwargs"] = kwargs
    elif sandbox:
        options["sandbox_fusion"] = sandbox
    return {"use": "verl", "options": options} if options else "verl"


def _sandbox(settings: Conversion) -> dict[str, Any]:
    places = ("reward_model.sandbox_fusion", "reward.sandbox_fusion", "sandbox_fusion")
    url = settings.get(*(f"{place}.url" for place in places))
    sandbox: dict[str, Any] = {"url": url} if isinstance(url, str) and url else {}
    for key in ("max_concurrent", "memory_limit_mb"):
        value = settings.whole(*(f"{place}.{key}" for place in places), default=0)
        if sandbox and value > 0:
            sandbox[key] = value
    return sandbox


# What the files hold that a config names.


def _look_at_tools(path: str, settings: Conversion) -> None:
    """Note classes that aren't there, and what they import that isn't."""
    if not Path(expanded(path)).is_file():
        settings.remark(f"tool_config_path: {path} isn't here; it has to be where the run starts")
        return
    try:
        entries = read_tool_yaml(expanded(path), kept)
    except ConfigError as error:
        settings.lose("tool_config_path", str(error))
        return
    for entry in entries:
        _look_at_class(entry, settings)


def _look_at_class(entry: ToolYamlEntry, settings: Conversion) -> None:
    name = entry.class_name or ""
    own = own_file(name, ()) if name and entry.type != "mcp" else None
    if own is not None:
        _look_at_python(own, settings)
    elif entry.type == "native":
        try:
            check_module(name, (), entry.place)
        except ConfigError as error:
            settings.lose(name, str(error))


def _look_at_python(path: str, settings: Conversion) -> None:
    installed = PathFinder.find_spec("verl")
    if installed is None or installed.origin is None:
        folders = search_folders(())
        lose_imports(path, "verl", lambda name: bool(own_spec(name, folders) or stand_in(name)), settings)
