"""Classes and functions of the user's, by `module:Name` or `path/file.py:Name`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from toolrl.errors import ConfigError

TRACEBACK = "Import it in a Python session to see the whole traceback."


def load_object(reference: str, where: str | None, *, folders: Sequence[str] = (), hint: str = "") -> Any:
    """The object that `module:Name` or `file.py:Name` names; modules are also looked for in the current folder
    and in `folders`, and a file imports its neighbours. Raises ConfigError that names the failed import."""
    source, _, name = reference.rpartition(":")
    command = f"python {source}" if source.endswith(".py") else f"python -c 'import {source}'"
    with import_errors(reference, where, lambda _: hint or f"Run `{command}` to see the whole traceback."):
        if source.endswith(".py"):
            _search([Path(source).parent])
            module = run_file(Path(source))
        else:
            module = import_module(source, folders)
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError:
        raise ConfigError(f"{source!r} has no {name!r}", where=where) from None


def import_module(name: str, folders: Sequence[str] = ()) -> ModuleType:
    """A module by its name, from what is installed, the current folder or `folders`."""
    _search([".", *folders])
    return sys.modules.get(name) or _loaded_by_path(name) or importlib.import_module(name)


def _search(folders: Sequence[str | Path]) -> None:
    """Import modules from these folders too, for good: what is imported may import more when it runs."""
    for folder in folders:
        path = str(Path(folder).expanduser().absolute())
        if path not in sys.path:
            sys.path.append(path)


def run_file(file: Path, name: str | None = None, *, once: bool = True) -> ModuleType:
    """A Python file as a module of its own. With `once` a file that is a module already isn't run again, whatever its
    name is: a class would exist twice, and a registry would refuse its second registration. Raises ConfigError for no
    file, and what the file raises."""
    file = file.expanduser().resolve()
    found = loaded_module(file) if once else None
    if found is not None:
        return found
    name = name or "_toolrl_user_" + "".join(c if c.isalnum() else f"_{ord(c):x}_" for c in str(file))
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"there is no Python file {str(file)!r}", hint="Paths start where the run is started.")
    module = sys.modules[name] = importlib.util.module_from_spec(
        spec
    )  # Dataclasses and pickles of the file look there.
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def accepted(function: Callable[..., Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the keyword arguments that a function takes: all with `**kwargs`, else those it names."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(kwargs)
    return {name: value for name, value in kwargs.items() if name in parameters}


def loaded_module(file: Path) -> ModuleType | None:
    """The module that a file already is."""
    for module in list(sys.modules.values()):
        place = getattr(module, "__file__", None)
        if isinstance(place, str) and place.endswith(file.name) and Path(place).resolve() == file:
            return module
    return None


@contextmanager
def import_errors(reference: str, where: str | None, hint: Callable[[BaseException], str]) -> Iterator[None]:
    """Makes what the user's code raises while it is imported a ConfigError, sys.exit() and the like included."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except ConfigError as error:
        raise ConfigError(error.problems, where=error.where or where, hint=error.hint) from None
    except BaseException as error:
        problem = f"{reference!r} can't be imported: {type(error).__name__}: {error}"
        raise ConfigError(problem, where=where, hint=hint(error)) from error


def _loaded_by_path(name: str) -> ModuleType | None:
    """The module of this name where its file was run by its path."""
    spec = importlib.util.find_spec(name)
    return loaded_module(Path(spec.origin).resolve()) if spec and spec.has_location and spec.origin else None
