"""Rejects what pluggy accepts and would never call.

Measured in pluggy: a function whose name is no hook is registered and never called; a function without the mark is not
even seen; an `async def` returns a coroutine that is never awaited. Each would silently leave a plugin's component
missing, so each is an error here, with the fix in its message.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from toolrl import hookspecs
from toolrl.component import Component
from toolrl.errors import PluginError
from toolrl.hookspecs import PROJECT
from toolrl.kinds import KINDS

PREFIX = f"{PROJECT}_"
REGISTRATION = tuple(kind.hook for kind in KINDS.values())
_SPECS = (name for name, spec in vars(hookspecs).items() if hasattr(spec, f"{PROJECT}_spec"))
EVENTS = tuple(name for name in _SPECS if name not in REGISTRATION)


def check_plugin_module(module: Any) -> None:
    """Raises PluginError for a function that looks like a hook of a plugin and would never be called."""
    marked = 0
    for name, function in sorted(vars(module).items()):
        if not inspect.isfunction(function):
            continue
        mark = getattr(function, f"{PROJECT}_impl", None)
        if mark is None:
            if name.startswith(PREFIX):
                message = f"{name} lacks the mark @hookimpl, so it would never be called"
                raise PluginError(message, hint=f"Put @hookimpl above `def {name}`, or rename it.")
            continue
        hook = mark.get("specname") or name
        if hook not in REGISTRATION and not mark.get("optionalhook"):
            raise _no_hook(hook)
        check_not_async(name, function)
        marked += 1
    if not marked:
        raise PluginError(
            "it registers nothing: no function in its module is marked with @hookimpl",
            hint="Write `from toolrl import hookimpl` and put @hookimpl above a function such as `def toolrl_tools()`.",
        )


def _no_hook(name: str) -> PluginError:
    if name in EVENTS:
        hint = "Make it a method of a class, and register that as a component by `toolrl_observers`."
        return PluginError(f"{name} is an event, which only observers receive", hint=hint)
    return PluginError(f"there is no hook {name!r}", hint=did_you_mean(name, REGISTRATION, "The hooks are"))


def check_observer(observer: Any) -> list[str]:
    """The events that an observer has methods for. Raises PluginError for a method that can't be called."""
    found = []
    for name in dir(observer):
        if not name.startswith(PREFIX):
            continue
        method = inspect.getattr_static(observer, name, None)
        if name not in EVENTS:
            if callable(method) or isinstance(method, staticmethod | classmethod):
                raise PluginError(f"there is no event {name!r}", hint=did_you_mean(name, EVENTS, "The events are"))
            continue
        bound = getattr(observer, name)
        if not inspect.isroutine(bound):
            raise PluginError(f"{name} is a {type(bound).__name__}, not a method", hint=f"Write `def {name}(self, …)`.")
        check_not_async(name, bound)
        found.append(name)
    if not found:
        raise PluginError(
            f"{type(observer).__name__} has no method that is an event", hint=f"The events are: {', '.join(EVENTS)}."
        )
    return found


def check_not_async(name: str, function: Any) -> None:
    """Raises PluginError for a coroutine function or an async generator."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise PluginError(f"{name} is `async def`, and nothing awaits a hook", hint=f"Write `def {name}`.")


def check_components(hook: str, result: Any) -> list[Component[Any]]:
    """A registration hook's result as a list. Raises PluginError for anything but Components of different names."""
    if isinstance(result, str | bytes) or not isinstance(result, Iterable):
        raise PluginError(
            f"{hook} returned {_describe(result)}, expected an iterable of Components",
            hint="Write `yield Component(…)`, once for each.",
        )
    components: list[Component[Any]] = []
    for item in result:
        if not isinstance(item, Component):
            raise PluginError(
                f"{hook} gave {_describe(item)} where a Component was expected",
                hint='Write `yield Component("name", "package.module:attribute")`.',
            )
        if any(item.name == other.name for other in components):
            raise PluginError(f"{hook} gives {item.name!r} twice", hint="Give each its own name.")
        components.append(item)
    return components


def _describe(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}"


def did_you_mean(name: str, names: Iterable[str], known: str = "There are") -> str:
    """A hint for a misspelled name: the nearest one, where one is near, and all after `known`."""
    names = list(names)
    near, listed = nearest(name, names), f"{known}: {', '.join(names) or 'none'}."
    return f"Did you mean {near!r}? {listed}" if near else listed


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The name that a misspelled one most likely stands for, or None where none is near."""
    import difflib  # Only on the way to an error.

    lowered = {other.lower(): other for other in names}
    match = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[match[0]] if match else None
