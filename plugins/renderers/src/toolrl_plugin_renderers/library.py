"""The library `renderers`: whether it is there, which families it has, and one of its renderers for a tokenizer.

The only module that imports it, and only when asked. A renderer is chosen by name. `auto` looks the tokenizer's name up
in the library's own table; its further guesses (a probe of the model's config on the network, a fallback to the chat
template, which can't be continued turn by turn) are not used.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import re
from typing import Any

from pydantic import ValidationError

from toolrl.errors import ChatFormatError, ComponentLoadError
from toolrl_plugin_renderers.families import FAMILIES

OLDEST, TOO_NEW = (0, 1, 12), (0, 2)
_INSTALL = 'pip install "renderers>=0.1.12,<0.2" httpx'
_OTHER_WAY = "or use `chat_format: template` and a parser for the model's syntax"

INERT = frozenset({"thinking_retention", "image_cache_max", "audio_cache_max", "add_vision_id"})
"""Settings without a meaning here: earlier turns are never rendered again, and media are refused."""
_NO_OPS: dict[str, frozenset[str]] = {"kimi-k2": frozenset({"enable_thinking"})}
"""Settings that the library takes and does nothing with."""


def load(module: str = "renderers") -> Any:
    """A module of the library. Raises ComponentLoadError where it is missing, too old or too new."""
    try:
        version = importlib.metadata.version("renderers")
    except importlib.metadata.PackageNotFoundError as error:
        raise ComponentLoadError("the package `renderers` isn't installed", hint=f"Run {_INSTALL}.") from error
    number = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if not OLDEST <= number < TOO_NEW:
        age = "old" if number < OLDEST else "new"
        raise ComponentLoadError(f"renderers {version} is too {age} for this plugin", hint=f"Run {_INSTALL}.")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ComponentLoadError(
            f"renderers {version} can't be imported: {error}",
            hint=f"Run {_INSTALL}, and pip install what the message names.",
        ) from error


def check() -> str:
    """For `toolrl doctor`."""
    load()
    version = importlib.metadata.version("renderers")
    return f"renderers {version}, {len(FAMILIES)} families"


def settings_problem(name: str, settings: dict[str, Any]) -> str | None:
    """What is wrong with a renderer's name and settings; None where nothing is, or where the library can't say."""
    if name == "auto":
        named = f"options ({', '.join(settings)}) belong to a renderer; name it: `renderer: qwen3`, for example"
        return named if settings else None
    if name not in FAMILIES:
        return f"there is no renderer {name!r}; known are auto, {', '.join(FAMILIES)}"
    try:
        _config(load("renderers.configs"), name, settings)
    except ComponentLoadError:
        return None
    except ValueError as error:
        return str(error)
    return None


def accepted(config: Any) -> list[str]:
    """The settings that a renderer's config class takes."""
    name = config.model_fields["name"].get_default()
    return sorted(set(config.model_fields) - INERT - _NO_OPS.get(name, frozenset()) - {"name"})


def _config(configs: Any, name: str, settings: dict[str, Any]) -> Any:
    """A renderer's config. Raises ValueError with what doesn't fit."""
    model = type(configs.config_from_name(name))
    known = accepted(model)
    unknown = [key for key in settings if key not in known]
    if unknown:
        takes = f"it takes {', '.join(known)}" if known else "it takes none"
        raise ValueError(f"renderer {name!r} has no setting {', '.join(map(repr, unknown))}; {takes}")
    try:
        return model(**settings)
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or name}: {e['msg']}" for e in error.errors())
        raise ValueError(f"settings of renderer {name!r}: {faults}") from None


def resolve(name: str, tokenizer: Any, where: str) -> str:
    """A renderer's name for `auto`. Raises ChatFormatError where the library doesn't know the tokenizer's name."""
    if name != "auto":
        return name
    model = str(getattr(tokenizer, "name_or_path", "") or "")
    found = load("renderers.base").MODEL_RENDERER_MAP.get(model)
    if found in FAMILIES:
        return str(found)
    raise ChatFormatError(
        f"no renderer is known for the tokenizer {model or 'without a name'!r}",
        where=where,
        hint=f"Name the model's family: `options: {{renderer: NAME}}` with one of {', '.join(FAMILIES)}; {_OTHER_WAY}.",
    )


def build(name: str, settings: dict[str, Any], tokenizer: Any, where: str) -> Any:
    """A renderer. Raises ChatFormatError where it doesn't fit the tokenizer, ComponentLoadError without the library."""
    renderers = load()
    config = _config(load("renderers.configs"), name, settings)
    try:
        return renderers.create_renderer(tokenizer, config)
    except Exception as error:
        raise ChatFormatError(
            f"renderer {name!r} can't work with this tokenizer: {error or type(error).__name__}",
            where=where,
            hint=_fit_hint(name, error),
        ) from error


def _fit_hint(name: str, error: Exception) -> str:
    if type(error).__name__ == "HarmonyError":
        return (
            "It encodes with OpenAI's o200k_base, which openai-harmony downloads once. Without a network, put "
            "o200k_base.tiktoken into a folder and set TIKTOKEN_ENCODINGS_BASE to that folder."
        )
    return f"{name!r} is for models whose vocabulary has its special tokens: choose another renderer, {_OTHER_WAY}."
