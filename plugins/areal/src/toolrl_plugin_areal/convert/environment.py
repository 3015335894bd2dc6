"""AReaL's `tir` section and its reward as one environment."""

from __future__ import annotations

import importlib.util
import math
from typing import Any

from toolrl_common.conversion import SMALLEST
from toolrl_plugin_areal.convert.conversion import ArealConversion

_TOOLS = ("python", "calculator")
_ELSEWHERE = ("sandbox_python", "daytona_python")
_PACKAGES = ("sympy", "numpy")
_CPU_SECONDS = 30
"""The tool's own limit of processor time."""
_LONGEST = 3600.0


def environment(settings: ArealConversion) -> dict[str, Any]:
    """`environments.default`."""
    calls = settings.whole("tir.max_turns", least=0)
    settings.remark(
        f"environments.default.max_turns: AReaL counts calls; {calls} of them and an answer are {calls + 1} turns, "
        "and a call in the last one runs as in AReaL"
    )
    settings.remark(
        "environments.default.end_flags: AReaL means to end an episode at \\boxed{…}, but its pattern matches none; "
        "take `end_flags` out to have episodes go on until the model ends them"
    )
    return {
        "parser": "areal_tir",
        "chat_format": _chat_format(settings),
        "tools": _tools(settings),
        "end_flags": ["boxed"],
        "rewards": [_reward(settings)],
        "max_turns": calls + 1,
    }


def _chat_format(settings: ArealConversion) -> str:
    if settings.flag("tir.is_chat_model"):
        settings.remark("environments.default.chat_format: `tir` describes the tools in its own words")
        return "tir"
    settings.remark("environments.default.chat_format: `torl` is ToRL's prompt; AReaL's copy of it has two misprints")
    return "torl"


def _tools(settings: ArealConversion) -> list[dict[str, Any]]:
    key = "tir.enable_tools"
    given = _TOOLS if settings.null(key) else settings.get(key)
    listed = given if isinstance(given, list | tuple) else str(given).split(";")
    names = [str(name).strip() for name in listed if str(name).strip()]
    elsewhere = [name for name in names if name in _ELSEWHERE]
    if elsewhere:
        settings.remark(
            f"environments.default.tools: {', '.join(elsewhere)} runs code in a sandbox elsewhere; here `python` runs "
            "it isolated on this machine, and `sandbox-fusion` has a sandbox elsewhere"
        )
        names = ["python" if name in _ELSEWHERE else name for name in names]
    unknown = [name for name in names if name not in _TOOLS]
    if unknown:
        settings.lose(key, f"no tool here is called {', '.join(unknown)}; name its class by the tool `areal_tool`")
    names = [name for name in _TOOLS if name in names]
    if not names:
        settings.lose(key, f"{str(given)[:40]!r} names no tool; the config has python")
        names = ["python"]
    seconds = settings.number("tir.tool_timeout", least=SMALLEST, most=_LONGEST)
    if "python" in names and seconds != 20:
        settings.remark(
            f"tir.tool_timeout: {seconds:g} s are what code may run; in AReaL it has no effect, and code may run 20 s"
        )
    calculator = {"use": "calculator", "policy": {"timeout": seconds}}
    return [_python(seconds, settings) if name == "python" else calculator for name in names]


def _python(seconds: float, settings: ArealConversion) -> dict[str, Any]:
    packages = [name for name in _PACKAGES if importlib.util.find_spec(name) is not None]
    settings.remark(
        "environments.default.tools: in AReaL code runs in the trainer's own environment; here it is isolated, and can "
        f"import the standard library{''.join(f', {name}' for name in packages)}: name more as `packages`"
    )
    options: dict[str, Any] = {"timeout": seconds}
    if seconds > _CPU_SECONDS:
        options["cpu_seconds"] = math.ceil(seconds)
    if packages:
        options["packages"] = packages
    return {"use": "python", "options": options}


def _reward(settings: ArealConversion) -> dict[str, Any]:
    scaling = settings.number("actor.reward_scaling", least=-math.inf)
    bias = settings.number("actor.reward_bias", least=-math.inf)
    options = {name: value for name, value, plain in (("scaling", scaling, 1.0), ("bias", bias, 0.0)) if value != plain}
    settings.remark(
        "environments.default.rewards: AReaL's judge also reads what tools printed; `tool_output: true` does that here"
    )
    return {"use": "areal_tir", **({"options": options} if options else {})}
