"""verl's multi-turn, tool and reward settings as one environment."""

from __future__ import annotations

import math
from typing import Any

from toolrl_common.conversion import Conversion, user_path
from toolrl_plugin_verl.convert.look import look_at_python, look_at_tools

_MULTI = "actor_rollout_ref.rollout.multi_turn"
_PARSERS = {
    "hermes": "hermes",
    "qwen": "hermes",
    "qwen2_5": "hermes",
    "chatml": "hermes",
    "qwen3_coder": "qwen3_coder",
    "qwen3_xml": "qwen3_coder",
}
_RENDERERS = {
    "gpt-oss": "gpt-oss",
    "gpt_oss": "gpt-oss",
    "llama3": "llama-3",
    "llama3_json": "llama-3",
    "glm": "auto",
    "glm45": "glm-4.5",
    "kimi": "auto",
    "kimi_k2": "kimi-k2",
    "deepseekv3": "deepseek-v3",
    "deepseek_v4": "deepseek-v4",
    "minimax": "minimax-m2",
    "gemma4": "gemma4",
}
"""verl's formats to the renderer of the plugin `renderers`; `auto` where one format is that of several families."""
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
    if form in _RENDERERS:
        return _rendered(settings, _RENDERERS[form])
    kwargs = {**settings.section("data.apply_chat_template_kwargs")}
    options = {"template_kwargs": kwargs} if kwargs else {}
    if form not in _PARSERS:
        settings.lose(f"{_MULTI}.format", f"{form!r} isn't there; the config reads calls as hermes")
    chat: Any = {"use": "template", "options": options} if options else "template"
    return {"parser": _PARSERS.get(form, "hermes"), "chat_format": chat}


def _rendered(settings: Conversion, renderer: str) -> dict[str, Any]:
    settings.remark("environments.default: the plugin `renderers` reads and writes this model's calls")
    if renderer == "auto":
        settings.remark(
            "environments.default.parser, .chat_format: name the renderer of a model in a folder of yours, as in "
            "{use: renderers, options: {renderer: glm-5}}; `toolrl doctor renderers` knows which there are"
        )
    for key in settings.section("data.apply_chat_template_kwargs"):
        settings.lose(
            f"data.apply_chat_template_kwargs.{key}",
            "an argument of the model's chat template; the plugin `renderers` has `options` of its own",
        )
    use: Any = "renderers" if renderer == "auto" else {"use": "renderers", "options": {"renderer": renderer}}
    return {"parser": use, "chat_format": use}


def _tools(settings: Conversion) -> list[dict[str, Any]]:
    config = settings.get(*_TOOL_FILES)
    functions = settings.get(f"{_MULTI}.function_tool_path", "data.function_tool_path")
    policy = _policy(settings, used=bool(config or functions))
    options: dict[str, Any] = {}
    if isinstance(config, str) and config:
        options["tool_config_path"] = user_path(config)
        look_at_tools(options["tool_config_path"], settings)
    if isinstance(functions, str) and functions:
        options["function_tool_path"] = user_path(functions)
        look_at_python(options["function_tool_path"], settings)
    if not options:
        return []
    settings.remark(
        "environments.default.tools: as in verl, what the tools give as rewards reaches compute_score and isn't added "
        "to the score; with `step_rewards: true` and without `weight: 0` it is"
    )
    tool: dict[str, Any] = {"use": "verl", "options": {**options, "step_rewards": False}, "weight": 0.0}
    settings.remark("policy.timeout: verl lets a call take as long as it likes; here it is stopped after 300 s")
    if policy:
        tool["policy"] = policy
    return [tool]


def _policy(settings: Conversion, *, used: bool) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    length, side = f"{_MULTI}.max_tool_response_length", f"{_MULTI}.tool_response_truncate_side"
    characters, given = settings.whole(length, default=0), str(settings.get(side))
    if settings.given(length) and characters > 0:
        tokens = math.ceil(characters / CHARACTERS_A_TOKEN)
        policy["max_output_tokens"] = tokens
        settings.remark(
            f"policy.max_output_tokens: verl cuts answers to {characters} characters, here tokens count: {tokens}"
        )
    elif used:
        settings.remark("policy.max_output_tokens: verl cuts answers to 256 characters by default, here to 1024 tokens")
    if given in ("left", "right"):
        policy["truncate"] = "tail" if given == "left" else "head"
        settings.remark(
            f"policy.truncate: `{given}` as verl 0.9.1 means it, which keeps the {policy['truncate']} of an answer"
        )
    calls = f"{_MULTI}.max_parallel_calls"
    most = settings.whole(calls, default=0)
    if settings.given(calls) and most > 0:
        policy["max_calls_per_turn"] = most
        settings.remark(
            "policy.max_calls_per_turn: further calls of a turn are answered as too many; verl drops them unseen"
        )
    elif used:
        settings.remark("all calls of a turn are run; verl runs max_parallel_calls of them, 1 by default")
    return policy


def _max_turns(settings: Conversion, tools: bool) -> int:
    # The first guides write `multi_turn: True`.
    enabled = settings.flag(_MULTI) or settings.flag(f"{_MULTI}.enable")
    loop = settings.get("actor_rollout_ref.rollout.agent.default_agent_loop")
    if loop not in ("single_turn_agent", "tool_agent"):
        settings.lose(
            "actor_rollout_ref.rollout.agent.default_agent_loop",
            f"{loop!r} is an agent loop of your own; turns are toolrl's",
        )
    if tools and loop == "single_turn_agent":
        settings.remark(
            "environments.default.tools: all rows have them; verl 0.9.1 runs those of rows whose `agent_name`, or else "
            "`default_agent_loop`, is tool_agent"
        )
    given = settings.whole(f"{_MULTI}.max_assistant_turns", f"{_MULTI}.max_turns", default=0)
    users = settings.whole(f"{_MULTI}.max_user_turns", default=0)
    limits = [limit for limit in (given, users + 1 if users > 0 else 0) if limit > 0]
    if limits:
        return min(limits)
    if not tools and not enabled:
        return 1
    settings.remark(f"environments.default.max_turns: verl sets no limit; here it is {NO_LIMIT}")
    return NO_LIMIT


def _reward(settings: Conversion) -> Any:
    options: dict[str, Any] = {}
    path = settings.get("custom_reward_function.path", "reward.custom_reward_function.path")
    name = settings.get("custom_reward_function.name", "reward.custom_reward_function.name")
    kwargs = {
        **settings.section("custom_reward_function.reward_kwargs"),
        **settings.section("reward.custom_reward_function.reward_kwargs"),
    }
    if settings.flag("reward_model.enable", "reward.reward_model.enable"):
        settings.lose("reward_model.enable", "there is no reward model; the config scores by function alone")
    manager = settings.get("reward_model.reward_manager", "reward.reward_manager.name", "reward_manager.name")
    if manager not in (None, "naive", "batch", "prime", "dapo"):
        settings.lose("reward_model.reward_manager", f"what the reward manager {manager!r} adds to the score")
    sandbox = _sandbox(settings)
    if isinstance(path, str) and path:
        options["path"] = user_path(path)
        look_at_python(options["path"], settings)
        if isinstance(name, str) and name and name != "compute_score":
            options["name"] = name
        if kwargs:
            options["reward_kwargs"] = kwargs
        settings.remark(
            "rewards: compute_score gets what the model wrote; with `solution: response` tool answers, too, as in verl"
        )
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
