"""Finds the class of a tool YAML's `class_name`.

The user's own file goes first, below `python_path` or the current folder, also where it is called like one of verl's.
verl's `Gsm8kTool`, `Geo3kTool`, `SearchTool` and `SandboxFusionTool` are those of this package elsewhere.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.user_classes import TRACEBACK, import_errors
from toolrl_plugin_verl.imports import load_user, own_spec, search_folders

STAND_INS = (
    "verl.tools.gsm8k_tool.Gsm8kTool",
    "verl.tools.geo3k_tool.Geo3kTool",
    "verl.tools.search_tool.SearchTool",
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool",
)


def find_class(class_name: str, python_path: Sequence[str], place: str) -> Any:
    """The class. Raises ConfigError with the module that couldn't be imported."""
    module_name, dot, attribute = class_name.rpartition(".")
    if not dot or not all(part.isidentifier() for part in class_name.split(".")):
        raise ConfigError(f"class_name is {class_name!r:.80}, expected `module.Class`", where=place)
    module = _imported(class_name, module_name, python_path, place)
    found = getattr(module, attribute, None)
    if not isinstance(found, type):
        raise ConfigError(f"the module {module_name!r} has no class {attribute!r}", where=place)
    lacking = [stage for stage in ("create", "execute", "calc_reward", "release") if not hasattr(found, stage)]
    if lacking:
        raise ConfigError(f"{class_name!r} has no {', '.join(lacking)}", where=place, hint="Subclass BaseTool.")
    return found


def own_file(class_name: str, python_path: Sequence[str] = (), *, here: bool = True) -> str | None:
    """The user's own file that holds a class, below `python_path` or, with `here`, the current folder."""
    folders = search_folders(python_path)
    spec = own_spec(class_name.rpartition(".")[0], folders if here else folders[:-1])
    return spec.origin if spec is not None else None


def _imported(class_name: str, module_name: str, python_path: Sequence[str], place: str) -> Any:
    if class_name in STAND_INS and own_file(class_name, python_path) is None:
        return importlib.import_module(f"toolrl_plugin_{module_name}")
    strict = own_file(class_name, python_path, here=False) is not None
    with import_errors(class_name, place, lambda error: import_hint(error, module_name)):
        return load_user(lambda: importlib.import_module(module_name), python_path, strict=strict)


def import_hint(error: BaseException, module_name: str = "") -> str:
    """What to do about a file of the user's that can't be imported."""
    missing = getattr(error, "name", None) if isinstance(error, ImportError) else None
    if not isinstance(missing, str) or not isinstance(error, ModuleNotFoundError):
        return TRACEBACK
    if missing.partition(".")[0] == "verl":
        return (
            f"toolrl has no stand-in for {missing}: install verl, or take the import out. Of verl's own classes there "
            f"are: {', '.join(STAND_INS)}."
        )
    if module_name.startswith(missing):
        return "Add the folder that it is in to the option `python_path`."
    return f"Install what the file imports, {missing!r}, or add the folder that it is in to `python_path`."
