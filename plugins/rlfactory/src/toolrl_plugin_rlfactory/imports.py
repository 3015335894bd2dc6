"""Lets the user's files import RLFactory's `envs` and `verl` as they stand.

What RLFactory itself has there is `envs.py` and `managers.py` of this package; any other `envs.x` is the user's file in
their folder `envs`. Both hold while a file is loaded, and are taken back then.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

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
