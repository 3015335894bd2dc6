"""verl's tools and rewards as one environment."""

from __future__ import annotations

import math
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.conversion import Conversion, expanded, lose_imports, user_path
from toolrl_common.references import kept
from toolrl_plugin_verl.convert.algorithm import MANAGER
from toolrl_plugin_verl.imports import check_module, own_file, own_spec, search_folders, stand_in
from toolrl_plugin_verl.tool_yaml import ToolYamlEntry, read_tool_yaml

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
"""Keys of verl, its older versions and its guides that name the tools' YAML."""
NO_LIMIT = 32
"""Turns where verl sets no limit."""
CHARACTERS_A_TOKEN = 4


def environment(settings: Conversion) -> dict[str, Any]:
    """Convert tools and rewards to `environments.default`."""
    result: dict[str, Any] = dict(_language(settings))
    tools = _tools(settings)
    if tools:
        result["tools"] = tools
    result["rewards"] = [_reward(settings)]
    result["max_turns"] = _max_turns(settings, bool(tools))
    return result


def _language(settings: Conversion) -> dict[str, Any]:
    """Convert the syntax of calls to a parser and a chat format."""
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
    settings.remark(
        "environments.default.tools: what tools return as reward isn't added to the score, as in verl, where it only "
        "reaches compute_score; take out `step_rewards: false` and `weight: 0.0` to add it"
    )
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
    if (name := settings.get(loop)) not in ("single_turn_agent", "tool_agent"):
        settings.lose(loop, f"{name!r} here, and the config plays toolrl's turn loop")
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
        key = "reward.reward_model.enable" if settings.given("reward.reward_model.enable") else "reward_model.enable"
        settings.lose(key, "no reward model runs here; the config scores by function alone")
    else:
        settings.idle("reward_model.model", "reward.reward_model")
    manager = settings.get(*MANAGER)
    for place in ("reward.reward_manager", "reward_manager"):
        if settings.get(f"{place}.source") in (None, "register"):
            settings.idle(place)  # The manager is one of verl's, by its name.
    if manager not in (None, "naive", "batch", "prime", "dapo"):
        key = next((key for key in MANAGER if settings.given(key)), MANAGER[0])
        settings.lose(key, f"{manager!r} isn't there; the score is compute_score's")
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
        settings.lose("tool_config_path", str(error), learned=True)
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
            settings.lose(name, str(error), learned=True)


def _look_at_python(path: str, settings: Conversion) -> None:
    installed = PathFinder.find_spec("verl")
    if installed is None or installed.origin is None:
        folders = search_folders(())
        lose_imports(path, "verl", lambda name: bool(own_spec(name, folders) or stand_in(name)), settings)
