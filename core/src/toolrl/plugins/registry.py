"""Installed plugins and their components: the typed face of pluggy's registration hooks.

Every plugin's hooks are called once, each plugin by itself, so that one that raises is marked as broken and hides no
other. A component is found by its short name, or by `plugin/name`. Where two plugins give one short name, both stay
reachable by their full names, and only using the short one is an error.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pluggy

from toolrl import hookspecs
from toolrl.component import Component
from toolrl.errors import AmbiguousComponentError, PluginError, UnknownComponentError
from toolrl.kinds import KINDS
from toolrl.plugins.checks import check_components, check_plugin_module, nearest
from toolrl.plugins.discovery import DISABLE, broken, examine, find_plugins, import_plugin
from toolrl.plugins.info import PluginInfo
from toolrl.version import __version__

_MOVED = {("chat_formats", f"builtin/{name}"): f"chat/{name}" for name in ("plain", "template")}
_MOVED[("observers", "builtin/console")] = "console"
"""By kind and full name, components of core that a plugin has now: older configs may name them so."""


@dataclass(frozen=True)
class RegisteredComponent:
    """A component and the plugin that gives it."""

    component: Component[Any]
    plugin: PluginInfo

    @property
    def qualified(self) -> str:
        """`plugin/name`."""
        return f"{self.plugin.name}/{self.component.name}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names that find it, where no other plugin gives the same."""
        return (self.component.name, self.qualified) if self.component.short else (self.qualified,)


class Registry:
    """All plugins, usable or not, and the components of the usable ones. Read-only once made."""

    def __init__(self, plugins: Iterable[PluginInfo]) -> None:
        self.plugins: list[PluginInfo] = list(plugins)
        """By name."""
        self._found: dict[str, list[RegisteredComponent]] = {kind: [] for kind in KINDS}
        for plugin in self.plugins:
            for kind, components in plugin.components.items():
                self._found[kind].extend(RegisteredComponent(component, plugin) for component in components)
        for kind, found in self._found.items():
            taken = {it.component.name for it in found if not it.component.fallback}
            self._found[kind] = [it for it in found if not (it.component.fallback and it.component.name in taken)]

    @classmethod
    def from_modules(cls, modules: Mapping[str, ModuleType]) -> Registry:
        """A registry of these modules alone, by plugin name, without looking at what is installed; for tests."""
        return cls(_register([(module, PluginInfo(name)) for name, module in sorted(modules.items())]))

    def components(self, kind: str) -> Iterator[RegisteredComponent]:
        """All components of a kind, in the order of their plugins. `kind` is a key of `toolrl.kinds.KINDS`."""
        yield from self._of(kind)

    def names(self, kind: str) -> list[str]:
        """The names of a kind's components in a config: short names, and `plugin/name` where a short one is taken
        twice."""
        found = self._of(kind)
        short = [it.names[0] for it in found]
        return sorted(name if short.count(name) == 1 else it.qualified for name, it in zip(short, found, strict=True))

    def plugin(self, name: str) -> PluginInfo | None:
        """The plugin of this name, or None. Of two with one name, the first."""
        return next((plugin for plugin in self.plugins if plugin.name == name), None)

    def get(self, kind: str, name: str) -> RegisteredComponent:
        """The component that a config calls `name`. Raises UnknownComponentError or AmbiguousComponentError."""
        now = _MOVED.get((kind, name), name)
        matches = [it for it in self._of(kind) if now in it.names]
        if not matches:
            raise self._unknown(kind, now)
        if len(matches) > 1:
            names = [it.qualified for it in matches]
            raise AmbiguousComponentError(
                f"{len(names)} plugins give the {KINDS[kind].label} {name!r}",
                hint=f"Write {' or '.join(names)}.",
            )
        return matches[0]

    def of_plugin(self, plugin: PluginInfo) -> dict[str, list[RegisteredComponent]]:
        """A plugin's components by kind, without fallbacks that another plugin's component replaces."""
        found = {kind: [it for it in given if it.plugin is plugin] for kind, given in self._found.items()}
        return {kind: given for kind, given in found.items() if given}

    def clashes(self, plugin: PluginInfo) -> list[str]:
        """A line for each short name of the plugin's components that another plugin gives, too."""
        lines = []
        for kind, given in self.of_plugin(plugin).items():
            for it in given if KINDS[kind].places else ():
                rivals = [other for other in self._of(kind) if it.names[0] in other.names and other is not it]
                if rivals:
                    names = " or ".join(sorted(other.qualified for other in (it, *rivals)))
                    lines.append(
                        f"{len(rivals) + 1} plugins give the {KINDS[kind].label} {it.names[0]!r}: write {names}"
                    )
        return lines

    def unmet(self, kind: str, name: str) -> str | None:
        """The reason why a run refuses a component: a package that its plugin requires is missing or has another
        version. None if there is no such reason."""
        plugin = self.get(kind, name).plugin
        return f"the plugin {plugin.name!r} is {plugin.describe()}; {plugin.hint}" if plugin.status == "unmet" else None

    def unusable(self) -> list[PluginInfo]:
        """The plugins that are disabled, incompatible or broken."""
        return [plugin for plugin in self.plugins if not plugin.usable]

    def _of(self, kind: str) -> list[RegisteredComponent]:
        if kind not in self._found:
            raise ValueError(f"kind {kind!r}: expected one of {', '.join(KINDS)}")
        return self._found[kind]

    def _unknown(self, kind: str, name: str) -> UnknownComponentError:
        """The error for a name that no usable plugin gives, with whatever may explain it."""
        label = KINDS[kind].label
        plugin_name, slash, _ = name.rpartition("/")
        culprit = next((it for it in self.unusable() if it.name == (plugin_name if slash else name)), None)
        if culprit is not None:
            message = f"{label} {name!r}: the plugin {culprit.name!r} is {culprit.describe()}"
            if culprit.traceback:
                message += "\n" + _indented(culprit.traceback)
            return UnknownComponentError(message, hint=culprit.hint)
        names = self.names(kind)
        message = f"there is no {label} named {name!r}; installed: {', '.join(names) or 'none'}"
        failed = [f"{plugin.name} ({plugin.describe()})" for plugin in self.unusable()]
        if failed:
            message += f"; not loaded: {', '.join(failed)}"
        absent = self._absent(kind)
        if plugin_name in first_party() and self.plugin(plugin_name) is None:
            absent[name] = [plugin_name]
        near = name if name in absent else nearest(name, [*names, *(it.qualified for it in self._of(kind)), *absent])
        hint = f"Did you mean {near!r}?" if near and near != name else ""
        if near in absent and near not in names:
            hint = f"{hint} {' Or: '.join(map(install_hint, absent[near]))}".strip()
        return UnknownComponentError(message, hint=hint or "`toolrl list-plugins` shows what is installed.")

    def _absent(self, kind: str) -> dict[str, list[str]]:
        """Components of toolrl's own plugins that aren't installed, and the plugins that give each."""
        found: dict[str, list[str]] = {}
        for plugin, components in first_party().items():
            if kind in components and self.plugin(plugin) is None:
                for name in {plugin, *components[kind]}:
                    found.setdefault(name, []).append(plugin)
        return found


@functools.cache
def first_party() -> dict[str, dict[str, list[str]]]:
    """Names of components by plugin of toolrl's own and kind, installed or not; under `needs` the folders that it
    needs besides its own in a clone. `docs/reference/make.py` writes it."""
    import json  # Only on the way to an error.
    from pathlib import Path

    table: dict[str, dict[str, list[str]]] = json.loads(Path(__file__).with_name("first_party.json").read_bytes())
    return table


def install_hint(plugin: str) -> str:
    """The command that installs a plugin of toolrl's own."""
    folders = " ".join(f"./plugins/{name}" for name in [*first_party().get(plugin, {}).get("needs", ()), plugin])
    return f"Run `pip install toolrl-plugin-{plugin}`, or `pip install {folders}` in a clone of toolrl."


@functools.cache
def load_registry() -> Registry:
    """The registry of what is installed, read once a process. `load_registry.cache_clear()` forgets it."""
    disabled = {name.strip() for name in os.environ.get(DISABLE, "").split(",") if name.strip()}
    plugins = examine(find_plugins(), running=__version__, disabled=disabled)
    return Registry(_register(import_plugin(it) if it.usable else (None, it) for it in plugins))


def _register(loaded: Iterable[tuple[ModuleType | None, PluginInfo]]) -> list[PluginInfo]:
    """Registers each imported plugin and asks it for its components."""
    pm = pluggy.PluginManager(hookspecs.PROJECT)
    pm.add_hookspecs(hookspecs)
    return [info if module is None else _collect(pm, module, info) for module, info in loaded]


def _collect(pm: pluggy.PluginManager, module: ModuleType, info: PluginInfo) -> PluginInfo:
    """One plugin's components; whatever its hooks raise marks it as broken."""
    try:
        check_plugin_module(module)
        pm.register(module, info.name)
        components: dict[str, list[Component[Any]]] = {}
        for kind in KINDS.values():
            hooks = [it.function for it in getattr(pm.hook, kind.hook).get_hookimpls() if it.plugin is module]
            with contextlib.redirect_stdout(sys.stderr):  # A generator prints where it is read.
                given = [item for hook in hooks for item in check_components(kind.hook, hook())]
            if given:
                components[kind.name] = check_components(kind.hook, given)
    except PluginError as error:
        return info.unusable("broken", error.message, error.hint or "")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin's fault must not end the program
        return broken(info, error)
    return replace(info, components=components)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
