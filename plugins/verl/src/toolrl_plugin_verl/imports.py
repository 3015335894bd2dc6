"""Lets the user's files import `verl` and `ray` as they stand, where neither is installed.

| a file imports | it gets, the first that is there |
|---|---|
| `verl.a.b` | `verl/a/b.py` below `python_path` or the current folder; the installed verl's; this package's stand-in |
| `ray`, while the file is loaded | the installed one; `toolrl_plugin_verl.ray` |

A verl that can't be imported, such as its repository without what it needs, counts as not there, with a warning.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, TypeVar

_PACKAGE = __name__.rpartition(".")[0]
_HERE = os.path.dirname(__file__)  # noqa: PTH120 - compared with entries of __path__
_RAY = ("ray", "ray.actor")
_log = logging.getLogger(__name__)
T = TypeVar("T")


def load_user(load: Callable[[], T], python_path: Sequence[str] | None = None, *, strict: bool = False) -> T:
    """What `load` gives, which may import verl and ray, for good what is below `python_path`; None for that of before.
    With `strict` a verl that can't be imported is an error."""
    with _user_imports(python_path):
        try:
            return load()
        except Exception as error:
            if strict or not _is_broken("verl"):
                raise
            _log.warning("verl can't be imported here, and toolrl's stand-ins for it are used: %s", error)
        _finder.alone = True
        for name in [name for name in sys.modules if name.partition(".")[0] == "verl"]:
            del sys.modules[name]
        return load()


@contextmanager
def _user_imports(python_path: Sequence[str] | None) -> Iterator[None]:
    if python_path is not None:
        _finder.alone = False
        *folders, here = _finder.folders = search_folders(python_path)
        # For good, as tools import more.
        sys.path.extend(folder for folder in (here, *folders) if folder not in sys.path)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "verl" and _is_stale(name, module):
            del sys.modules[name]
    _finder.loading += 1
    try:
        yield
    finally:
        _finder.loading -= 1
        for name in _RAY:
            if getattr(sys.modules.get(name), "__name__", "").startswith(_PACKAGE):
                del sys.modules[name]


def search_folders(python_path: Sequence[str]) -> list[str]:
    """Absolute paths of these folders and, after them, the current one."""
    return [os.path.abspath(os.path.expanduser(folder)) for folder in (*python_path, ".")]  # noqa: PTH100, PTH111


def own_spec(name: str, folders: Sequence[str]) -> ModuleSpec | None:
    """The user's own module of this name below the folders, such as `verl/tools/geo3k_tool.py`; None where there is
    none."""
    *parents, _ = name.split(".")
    return PathFinder.find_spec(name, [os.path.join(folder, *parents) for folder in folders])  # noqa: PTH118


def stand_in(name: str) -> str | None:
    """This package's module for one of verl's or Ray's, if there is one."""
    real = f"{_PACKAGE}.ray" if name in _RAY else _PACKAGE + name.removeprefix("verl")
    try:
        return real if importlib.util.find_spec(real) is not None else None
    except ModuleNotFoundError:
        return None


class _VerlFinder(MetaPathFinder, Loader):
    """First of the finders: below a stand-in's package, the usual ones would load our files a second time."""

    folders: Sequence[str] = ()
    alone = False
    """Whether there is nothing but stand-ins."""
    loading = 0

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] != "verl" and not (self.loading and name in _RAY):
            return None
        own = None if self.alone else own_spec(name, self.folders)
        if own is not None and own.submodule_search_locations is None:
            return own
        if not any(entry.startswith(_HERE) for entry in path or ()) and not (self.alone and name not in _RAY):
            for finder in sys.meta_path:
                found = None if finder is self else finder.find_spec(name, path, target)
                if found is not None:
                    return found
        return own or (ModuleSpec(name, self) if stand_in(name) else None)

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(stand_in(module.__name__) or _PACKAGE)


def _is_broken(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # noqa: BLE001 - whatever keeps it from being used
        return True
    return False


def _is_stale(name: str, module: ModuleType) -> bool:
    """True for a stand-in, and for what isn't the file that would be found now."""
    own = own_spec(name, _finder.folders)
    other = own is not None and own.origin is not None and own.origin != getattr(module, "__file__", None)
    return other or module.__name__.startswith(_PACKAGE)


_finder = _VerlFinder()
