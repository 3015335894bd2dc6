"""The library `renderers`: whether it is there, which families it has, and one of its renderers for a tokenizer.

The only module that imports it, and only when asked. A renderer is chosen by name; `auto` looks the tokenizer's name up
in the library's own table.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from pydantic import ValidationError

from toolrl.errors import ChatFormatError, ComponentLoadError
from toolrl_plugin_renderers.families import FAMILIES

_INSTALL = 'pip install "renderers>=0.1.12,<0.2" httpx'


def load(module: str = "renderers") -> Any:
    """A module of the library. Raises ComponentLoadError where it can't be imported."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ComponentLoadError(
            f"the package `renderers` can't be imported: {error}", hint=f"Run {_INSTALL}."
        ) from error


def check() -> str:
    """For `toolrl doctor`."""
    load()
    version = importlib.metadata.version("renderers")
    return f"renderers {version}, {len(FAMILIES)} families"


def settings_problem(name: str, settings: dict[str, Any]) -> str | None:
    """What is wrong with a renderer's name and settings; None where nothing is, or where the library can't say."""
    if name == "auto":
        return "options belong to a renderer: name it" if settings else None
    if name not in FAMILIES:
        return f"there is no renderer {name!r}; known are auto, {', '.join(FAMILIES)}"
    try:
        _config(load("renderers.configs"), name, settings)
    except ComponentLoadError:
        return None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or name}: {e['msg']}" for e in error.errors())
        return f"settings of renderer {name!r}: {faults}"
    return None


def _config(configs: Any, name: str, settings: dict[str, Any]) -> Any:
    """A renderer's config. Raises ValidationError with what doesn't fit."""
    return type(configs.config_from_name(name))(**settings)


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
        hint=f"Name the model's family: `options: {{renderer: NAME}}` with one of {', '.join(FAMILIES)}.",
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
            hint=f"{name!r} is for models whose vocabulary has its special tokens: choose another renderer, or use "
            "`chat_format: template` and a parser for the model's syntax.",
        ) from error
