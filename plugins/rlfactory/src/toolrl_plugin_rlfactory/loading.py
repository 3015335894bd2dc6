"""Finds the user's classes, and lets their files import RLFactory's `envs` and `verl` as they stand.

A class is named `module:Class`, or by a file, `envs/mine.py:MyEnv`. What is installed goes first, then the current
folder. What RLFactory itself has in `envs` is `envs.py` and `managers.py` of this package; any other `envs.x` is the
user's file in their folder `envs`. Both hold while a file is loaded, and are taken back then.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from toolrl.errors import ConfigError
from toolrl_common.user_classes import accepted, import_errors, import_hint, import_module, run_file

_PACKAGE = __name__.rpartition(".")[0]
_MANAGERS = ("", ".base_manager", ".qwen3_manager", ".qwen2_5_manager", ".llama3_manager", ".centralized",
             ".centralized.centralized_qwen3_manager")  # fmt: skip
STAND_INS = {
    **dict.fromkeys(("envs", "envs.base", "envs.search", "verl", "verl.protocol"), f"{_PACKAGE}.envs"),
    **{f"envs.tool_manager{name}": f"{_PACKAGE}.managers" for name in _MANAGERS},
    **dict.fromkeys(("envs.utils", "envs.utils.util"), f"{_PACKAGE}.managers"),
}
"""By the name in RLFactory. A file `search.py` of the user's goes before its own."""
LOADED = "_rlfactory_"
"""Begins the names of the user's files as modules."""
_lock = threading.RLock()


def place_of(file: Path) -> tuple[str, Path]:
    """The package that a file is in, `envs` or one below it, and the folder `envs`; of a file elsewhere its own."""
    folders = file.resolve().parents
    root = next((folder for folder in folders if folder.name == "envs"), folders[0])
    return ".".join(["envs", *folders[0].relative_to(root).parts]), root


def own_spec(name: str, root: Path) -> ModuleSpec | None:
    """The user's own `envs.x` in their folder."""
    top, *folders = name.split(".")
    if top != "envs" or not folders or (name in STAND_INS and name != "envs.search"):
        return None
    return PathFinder.find_spec(name, [str(root.joinpath(*folders[:-1]))])


@contextmanager
def stand_ins(root: Path) -> Iterator[None]:
    """`envs` and `verl` are the stand-ins and the files in this folder."""
    with _lock:
        finder, before = _EnvsFinder(root), _taken()
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _taken()
            sys.modules.update(before)


class _EnvsFinder(MetaPathFinder, Loader):
    def __init__(self, root: Path) -> None:
        self._root = root

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        own = own_spec(name, self._root)
        return ModuleSpec(name, self, is_package=True) if own is None and name in STAND_INS else own

    def exec_module(self, module: ModuleType) -> None:
        real = importlib.import_module(STAND_INS[module.__name__])
        vars(module).update({name: value for name, value in vars(real).items() if not name.startswith("__")})


def _taken() -> dict[str, ModuleType]:
    """Take the modules of these names, but for the user's files that were loaded, out of `sys.modules`."""
    names = [name for name in sys.modules if name.partition(".")[0] in ("envs", "verl") and f".{LOADED}" not in name]
    return {name: sys.modules.pop(name) for name in names}


def manager_class(name: str) -> Any:
    """The class of a manager: of the registry, or the user's. Raises ConfigError."""
    from toolrl_plugin_rlfactory.managers import TOOL_MANAGER_REGISTRY

    return TOOL_MANAGER_REGISTRY.get(name) or load_class(name, None)


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


def _hint(error: BaseException) -> str | None:
    missing = error.name or "" if isinstance(error, ImportError) else ""
    if missing.partition(".")[0] in ("envs", "verl"):
        return (
            "Take the import out: of RLFactory there are Env, SearchEnv and DataProto, as in "
            "toolrl_plugin_rlfactory.envs, and the managers, as in toolrl_plugin_rlfactory.managers."
        )
    return import_hint(error)
