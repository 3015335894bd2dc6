"""Lets the user's files import `verl` and `ray` as they stand, where neither is installed.

| a file imports | it gets the first that can be imported |
|---|---|
| `verl.a.b` | `verl/a/b.py` below `python_path` or the current folder; the installed verl's; this package's stand-in |
| `ray`, while the file is loaded | the installed one; `toolrl_plugin_verl.ray` |

A clone of verl rarely can be imported whole: it asks for tensordict and for an older transformers. A module of it whose
imports fail is replaced by its stand-in, one by one; all others run as they are.

`find_class` gives the class of a tool YAML's `class_name`: verl's `Gsm8kTool`, `Geo3kTool`, `SearchTool` and
`SandboxFusionTool` are those of this package, unless the user has a file of that name.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from toolrl.errors import ConfigError
from toolrl_common import user_classes
from toolrl_common.user_classes import import_errors
from toolrl_plugin_verl.ray_workers import Reduced, reach_workers

_PACKAGE = __name__.rpartition(".")[0]
_HERE = os.path.dirname(__file__)  # noqa: PTH120 - compared with entries of __path__
_RAY = ("ray", "ray.actor")
_lock = threading.RLock()
_log = logging.getLogger(__name__)
STAND_INS = (
    "verl.tools.gsm8k_tool.Gsm8kTool",
    "verl.tools.geo3k_tool.Geo3kTool",
    "verl.tools.search_tool.SearchTool",
    "verl.tools.sandbox_fusion_tools.SandboxFusionTool",
)


@contextmanager
def user_imports(python_path: Sequence[str] | None = None) -> Iterator[None]:
    """While this is held, files may import verl and ray; for good what is below `python_path`, None for that of
    before."""
    if python_path is not None:
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
        reach_workers(_for_worker)
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
    loading = 0

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        of_verl = name.partition(".")[0] == "verl"
        if not of_verl and not (self.loading and name in _RAY):
            return None
        found, other = self._real(name, path, target), stand_in(name)
        if found is None:
            return ModuleSpec(name, self) if other else None
        if of_verl and other and found.loader is not None and found.origin is not None:  # Not a namespace.
            found.loader = _OrStandIn(found.loader, other)
        return found

    def _real(self, name: str, path: Sequence[str] | None, target: Any) -> ModuleSpec | None:
        """The user's own module, or the installed one."""
        own = own_spec(name, self.folders)
        if own is not None and own.submodule_search_locations is None:
            return own
        if not any(entry.startswith(_HERE) for entry in path or ()):
            for finder in sys.meta_path:
                found = None if finder is self else finder.find_spec(name, path, target)
                if found is not None:
                    return found
        return own

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(stand_in(module.__name__) or _PACKAGE)


class _OrStandIn(Loader):
    """Runs a module of verl; its stand-in takes its place where its own imports fail.

    A package keeps its folder, so that its other modules are found, and gets the names of the stand-in.
    """

    warned: ClassVar[set[str]] = set()

    def __init__(self, loader: Any, stand_in: str) -> None:
        self._loader, self._stand_in = loader, stand_in

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        is_package = hasattr(module, "__path__")
        try:
            self._loader.exec_module(module)
        except Exception as error:
            # In a module, anything else is a mistake of its own, as is a name or a module that verl doesn't have.
            absent = error.name or "" if isinstance(error, ImportError) else "verl"
            if not is_package and absent.partition(".")[0] == "verl":
                raise
            self._tell(module, error, logging.INFO if is_package else logging.WARNING)
        else:
            return
        other = importlib.import_module(self._stand_in)
        if is_package:
            for name, value in vars(other).items():
                submodule = isinstance(value, ModuleType) and value.__name__ == f"{self._stand_in}.{name}"
                if not name.startswith("__") and not submodule:
                    vars(module).setdefault(name, value)
        else:
            sys.modules[module.__name__] = other

    def _tell(self, module: ModuleType, error: Exception, level: int) -> None:
        file = str(module.__file__)
        if file not in self.warned:
            self.warned.add(file)
            reason = f"{type(error).__name__}: {error}"
            _log.log(level, "%s can't be imported (%s); toolrl's stand-in is used", file, reason)


def _is_stale(name: str, module: ModuleType) -> bool:
    """True for a stand-in, and for what isn't the file that would be found now."""
    own = own_spec(name, _finder.folders)
    other = own is not None and own.origin is not None and own.origin != getattr(module, "__file__", None)
    return other or module.__name__.startswith(_PACKAGE)


_finder = _VerlFinder()


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


def check_module(class_name: str, python_path: Sequence[str], place: str) -> None:
    """Raises ConfigError where there is no module for a class; no file of the user's is run."""
    module, top = class_name.rpartition(".")[0], class_name.partition(".")[0]
    spec = importlib.util.find_spec(top)
    installed = spec is not None and spec.name == top and spec.loader is not _finder  # No stand-in of verl itself.
    if not installed and own_file(class_name, python_path) is None and stand_in(module) is None:
        hint = import_hint(ModuleNotFoundError(name=module), module)
        raise ConfigError(f"{class_name!r}: there is no module {module!r}", where=place, hint=hint)


def own_file(class_name: str, python_path: Sequence[str]) -> str | None:
    """The user's own file that holds a class, below `python_path` or the current folder."""
    spec = own_spec(class_name.rpartition(".")[0], search_folders(python_path))
    return spec.origin if spec is not None else None


def _imported(class_name: str, module_name: str, python_path: Sequence[str], place: str) -> Any:
    if class_name in STAND_INS and own_file(class_name, python_path) is None:
        return importlib.import_module(f"toolrl_plugin_{module_name}")
    with import_errors(class_name, place, lambda error: import_hint(error, module_name)), user_imports(python_path):
        return importlib.import_module(module_name)


def import_hint(error: BaseException, module_name: str = "") -> str | None:
    """What to do about a file of the user's that can't be imported."""
    missing = error.name if isinstance(error, ImportError) else None
    if missing and missing.startswith(_PACKAGE):
        upstream = missing.replace(_PACKAGE, "verl", 1)
        return f"toolrl's stand-in for {upstream} lacks what the file imports: install verl, or take the import out."
    if not missing or not isinstance(error, ModuleNotFoundError):
        return user_classes.import_hint(error)
    if missing.partition(".")[0] == "verl":
        return (
            f"toolrl has no stand-in for {missing}: install verl, or take the import out. Of verl's own classes there "
            f"are: {', '.join(STAND_INS)}."
        )
    if module_name.startswith(missing):
        return "Add the folder that it is in to the option `python_path`."
    return f"{user_classes.import_hint(error)} The option `python_path` adds folders."


# The user's modules in Ray's workers.


def _for_worker(obj: Any) -> Reduced | None:
    """How a worker gets an object of one of the user's modules; None for any other, and for what has no name there."""
    name = obj.__name__ if isinstance(obj, ModuleType) else getattr(obj, "__module__", None)
    module = sys.modules.get(name) if isinstance(name, str) else None
    file = getattr(module, "__file__", None)
    if module is None or name is None or not _is_users(name, file):
        return None
    qualname = "" if obj is module else obj.__qualname__
    try:
        there = _found(module, qualname) is obj
    except AttributeError:
        return None
    return (load_in_worker, (name, qualname, tuple(_finder.folders), file)) if there else None


def _is_users(name: str, file: str | None) -> bool:
    """True for a module of verl's name, one below the folders, and one that was run by its path."""
    if name.partition(".")[0] == "verl" or name.startswith(user_classes.BY_PATH):
        return True
    own = own_spec(name, _finder.folders) if file is not None else None
    return own is not None and own.origin == file


def load_in_worker(name: str, qualname: str, folders: Sequence[str], file: str | None) -> Any:
    """The object of that name. A worker imports its module for it."""
    module = sys.modules.get(name)
    if module is None:
        with _lock, user_imports(folders):
            if file is not None and name.startswith(user_classes.BY_PATH):
                module = user_classes.run_file(Path(file), name, once=False)
            else:
                module = importlib.import_module(name)
    return _found(module, qualname)


def _found(module: Any, qualname: str) -> Any:
    return functools.reduce(getattr, qualname.split("."), module) if qualname else module
