"""Finds the user's classes.

A class is named `module:Class`, or by a file, `envs/mine.py:MyEnv`. What is installed goes first, then the current
folder.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.user_classes import TRACEBACK, accepted, import_errors, import_module, run_file
from toolrl_plugin_rlfactory.imports import LOADED, place_of, stand_ins


def manager_class(name: str) -> Any:
    """The class of a manager: of the registry, or the user's. Raises ConfigError."""
    from toolrl_plugin_rlfactory.managers import TOOL_MANAGER_REGISTRY

    if name in TOOL_MANAGER_REGISTRY:
        return TOOL_MANAGER_REGISTRY[name]
    if ":" not in name:
        known = ", ".join(TOOL_MANAGER_REGISTRY)
        raise ConfigError(f"tool_manager {name!r} isn't there; there are {known}, and `module:Class` for your own")
    return load_class(name, None)


def load_class(reference: str, where: str | None) -> Any:
    """The class of `module:Class` or `file.py:Class`. Raises ConfigError with what couldn't be imported."""
    source, _, attribute = reference.rpartition(":")
    with import_errors(reference, where, _hint):
        module = _from_file(Path(source).expanduser()) if source.endswith(".py") else _from_name(source)
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise ConfigError(f"{source!r} has no class {attribute!r}", where=where)
    return found


def call_accepted(function: Callable[..., Any], **kwargs: Any) -> Any:
    """Call it with those of the arguments that it takes: RLFactory's versions differ in what they hand in."""
    return function(**accepted(function, kwargs))


def _from_name(name: str) -> Any:
    with stand_ins(Path("envs").resolve()):
        return import_module(name)


def _from_file(file: Path) -> Any:
    resolved = file.resolve()
    package, root = place_of(file)
    # A file that is named twice is one module, whose classes are the same.
    name = f"{package}.{LOADED}{resolved.stem}_{hashlib.sha256(str(resolved).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(resolved.parent)
    if folder not in sys.path:
        sys.path.append(folder)
    with stand_ins(root):
        return run_file(file, name, once=False)


def _hint(error: BaseException) -> str:
    missing = error.name or "" if isinstance(error, ImportError) else ""
    if missing.partition(".")[0] in ("envs", "verl"):
        return (
            "Take the import out: of RLFactory there are Env, SearchEnv and DataProto, as in "
            "toolrl_plugin_rlfactory.envs, and the managers, as in toolrl_plugin_rlfactory.managers."
        )
    return TRACEBACK
