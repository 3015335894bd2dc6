"""Lets Ray's workers import the user's files as this process did.

Ray hands a class over as the name of its module. A worker is a process of its own that has neither the folders of
`python_path` nor the stand-ins for verl. So for a class, a function or a module of the user's, the folders go along
with the name, and the worker imports it by `imports.py`.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from toolrl_common import user_classes
from toolrl_plugin_verl import imports

_lock = threading.Lock()
_MARK = "_toolrl_plugin_verl"


def reach_workers() -> None:
    """Teach Ray's pickler, once. Does nothing in a process that hasn't imported Ray."""
    pickler = getattr(sys.modules.get("ray.cloudpickle"), "CloudPickler", None)
    reduce = getattr(pickler, "reducer_override", None)
    if pickler is None or reduce is None or hasattr(reduce, _MARK):
        return

    @functools.wraps(reduce)
    def reducer_override(self: Any, obj: Any) -> Any:
        by_name = _by_name(obj) if isinstance(obj, type | FunctionType | ModuleType) else None
        return reduce(self, obj) if by_name is None else by_name

    setattr(reducer_override, _MARK, True)
    pickler.reducer_override = reducer_override


def _by_name(obj: Any) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """How a worker gets an object of one of the user's modules; None for any other, and for what has no name there."""
    name = obj.__name__ if isinstance(obj, ModuleType) else getattr(obj, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    file = getattr(module, "__file__", None)
    if module is None or name is None or not imports.is_users(name, file):
        return None
    qualname = "" if obj is module else obj.__qualname__
    try:
        if _found(module, qualname) is not obj:
            return None
    except AttributeError:
        return None
    return _load, (name, qualname, imports.folders(), file)


def _load(name: str, qualname: str, folders: Sequence[str], file: str | None) -> Any:
    """The object of that name; in a worker, the module is imported for it."""
    module = sys.modules.get(name)
    if module is None:
        with _lock, imports.user_imports(folders):
            if file is not None and name.startswith(user_classes.BY_PATH):
                module = user_classes.run_file(Path(file), name, once=False)
            else:
                module = importlib.import_module(name)
    return _found(module, qualname)


def _found(module: Any, qualname: str) -> Any:
    return functools.reduce(getattr, qualname.split("."), module) if qualname else module
