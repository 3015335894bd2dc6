"""Finds installed plugins, in two steps.

First the metadata: the entry points of the group `toolrl.plugins`, and of each one's distribution its name, version and
`Requires-Dist` lines, which are checked against what is installed. Nothing of a plugin is imported for that. Then
each plugin's module is imported, each under its own guard, so that one that can't be imported stops no other.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import re
import sys
from collections.abc import Sequence, Set
from types import ModuleType

import importlib_metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from toolrl.plugins.info import PluginInfo

_log = logging.getLogger(__name__)
CORE = "toolrl"
GROUP = "toolrl.plugins"
DISABLE = "TOOLRL_DISABLE"


def find_plugins() -> list[PluginInfo]:
    """All installed entry points of the group, by name. Imports no plugin."""
    found = importlib_metadata.entry_points(group=GROUP)
    return sorted(map(_plugin, found), key=lambda it: (it.name, it.distribution))


def _plugin(point: importlib_metadata.EntryPoint) -> PluginInfo:
    text = (point.dist.read_text("METADATA") or point.dist.read_text("PKG-INFO")) if point.dist is not None else None
    # An interrupted installation leaves no metadata.
    headers = _headers(text or "")
    name, version = (headers.get(key, [""])[0] for key in ("name", "version"))
    return PluginInfo(point.name, name, version, module=point.value, requires=headers.get("requires-dist", ()))


def _headers(text: str) -> dict[str, list[str]]:
    """The headers of a METADATA file by lower-case name: its lines down to the first empty one.

    The fields that are wanted stand on one line each. `email`, which reads these files in full, takes longer to import
    than the whole rest of discovery.
    """
    headers: dict[str, list[str]] = {}
    for line in text.partition("\n\n")[0].splitlines():
        key, colon, value = line.partition(":")
        if colon and not line[:1].isspace():
            headers.setdefault(key.lower(), []).append(value.strip())
    return headers


def examine(plugins: Sequence[PluginInfo], *, running: str, disabled: Set[str] = frozenset()) -> list[PluginInfo]:
    """Each plugin with its status by its metadata: disabled, incompatible, one of two with one name, without a package
    that it requires, or ok so far.

    `running` is toolrl's version; `disabled` holds names of plugins or distributions.
    """
    for name in sorted(disabled - {name for it in plugins for name in (it.name, it.distribution)}):
        _log.warning("%s names %r, and no plugin or distribution is called so", DISABLE, name)
    wanted = [it for it in plugins if not disabled & {it.name, it.distribution}]
    result = []
    for plugin in plugins:
        rivals = [it for it in wanted if it.name == plugin.name]
        if plugin not in rivals:
            plugin = plugin.unusable("disabled", f"named in {DISABLE}", f"Take it out of {DISABLE}.")
        elif len(rivals) > 1:
            plugin = _clash(plugin, rivals)
        else:
            plugin = plugin if plugin.distribution == CORE else _compatible(plugin, running)
            plugin = _supplied(plugin) if plugin.usable else plugin
        result.append(plugin)
    return result


def _clash(plugin: PluginInfo, rivals: Sequence[PluginInfo]) -> PluginInfo:
    """Two entry points of one name: neither wins."""
    names = " and ".join(f"{it.distribution or 'a distribution without name'} {it.version}".strip() for it in rivals)
    return plugin.unusable(
        "broken",
        f"{len(rivals)} distributions bring a plugin named {plugin.name!r}: {names}",
        f"pip uninstall {plugin.distribution}, or set {DISABLE}={plugin.distribution}, to use the other one.",
    )


def _compatible(plugin: PluginInfo, running: str) -> PluginInfo:
    """Checks `Requires-Dist: toolrl…` against the running version."""
    name = plugin.distribution
    for line in plugin.requires:
        try:
            unmet = unmet_requirement(line, running)
        except ValueError as error:
            reason = f"its metadata has the line 'Requires-Dist: {line}', which can't be read: {_line(error)}"
            return plugin.unusable("broken", reason, f"pip install --force-reinstall {name}")
        if unmet is not None:
            needed, core_is_older = unmet
            reason = f"{name} {plugin.version} needs toolrl {needed}, this is toolrl {running}"
            hint = _update_hint(needed) if core_is_older else f"pip install -U {name}"
            return plugin.unusable("incompatible", reason, hint)
    return plugin


def _update_hint(needed: str) -> str:
    """The next step for a toolrl that is too old."""
    folder = source_folder(CORE)
    if folder is None:
        return f'pip install -U "toolrl{needed}"'
    return f"toolrl is installed from {folder}: update that clone, for example by `git -C {folder} pull`."


def source_folder(distribution: str) -> str | None:
    """The folder that a distribution was installed from, or None for one from an index or a wheel."""
    import json  # Only on the way to a message.
    from urllib.parse import unquote, urlsplit

    try:
        text = importlib_metadata.distribution(distribution).read_text("direct_url.json")
    except importlib_metadata.PackageNotFoundError:
        return None
    try:
        found = json.loads(text or "{}")
        return unquote(urlsplit(found["url"]).path) if "dir_info" in found else None
    except (ValueError, KeyError, TypeError):
        return None


def _supplied(plugin: PluginInfo) -> PluginInfo:
    """Compares the distribution's requirements, without extras, with what is installed."""
    reasons, needs = [], []
    for line in plugin.requires:
        try:
            need = Requirement(line)
        except InvalidRequirement:  # `_compatible` reports it.
            continue
        if _normal(need.name) == CORE or (need.marker is not None and not need.marker.evaluate({"extra": ""})):
            continue
        there = installed_version(need.name)
        try:
            if there is not None and need.specifier.contains(there, prereleases=True):
                continue
        except InvalidVersion:  # An old package's own style; pip leaves it alone as well.
            continue
        needs.append(f"{need.name}{need.specifier}")
        reasons.append(f"{needs[-1]} (installed: {there or 'none'})")
    if not needs:
        return plugin
    reason = f"{plugin.distribution} {plugin.version} needs {', '.join(reasons)}"
    return plugin.unusable("unmet", reason, "pip install " + " ".join(f'"{it}"' for it in needs))


@functools.cache
def installed_version(name: str) -> str | None:
    """The version of an installed distribution, or None. Reads no more of its metadata than the headers."""
    for found in importlib_metadata.distributions(name=name):
        text = found.read_text("METADATA") or found.read_text("PKG-INFO")
        if text:
            return _headers(text).get("version", [""])[0]
    return None


def _normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def unmet_requirement(requirement: str, running: str) -> tuple[str, bool] | None:
    """None where version `running` of toolrl meets the requirement, or it is one of another package.

    Else the versions that it asks for, and whether toolrl is older than these (if not, it is newer). Raises ValueError
    for a requirement that can't be read.
    """
    try:
        need = Requirement(requirement)
    except InvalidRequirement as error:
        raise ValueError(str(error)) from error
    applies = need.marker is None or need.marker.evaluate({"extra": ""})
    if need.name.lower() != CORE or not applies or need.specifier.contains(running, prereleases=True):
        return None
    for part in need.specifier:
        try:
            bound = Version(part.version.removesuffix(".*"))
        except InvalidVersion:  # `===` takes any text.
            continue
        if part.operator in (">=", ">", "==", "~=") and bound > Version(running):
            return str(need.specifier), True
    return str(need.specifier), False


def import_plugin(plugin: PluginInfo) -> tuple[ModuleType | None, PluginInfo]:
    """Imports the plugin's module. Whatever that raises, SystemExit too, marks this plugin as broken and no other. What
    it prints goes to standard error: standard output belongs to the command that runs."""
    module, colon, _ = plugin.module.partition(":")
    if colon:
        reason = f"its entry point {plugin.name} = {plugin.module!r} names an object, expected a module"
        return None, plugin.unusable("broken", reason, f"Write {module!r} there.")
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(module), plugin
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin's fault must not end the program
        return None, broken(plugin, error, hint=_import_hint(error, plugin))


def broken(plugin: PluginInfo, error: BaseException, *, hint: str = "") -> PluginInfo:
    """The plugin marked as broken by an exception, whose traceback is kept."""
    import traceback  # Only on the way to an error.

    return plugin.unusable(
        "broken",
        f"{type(error).__name__}: {_line(error)}" if str(error) else type(error).__name__,
        hint or f"toolrl doctor {plugin.name} shows the traceback.",
        "".join(traceback.format_exception(error)).rstrip(),
    )


def _line(error: BaseException) -> str:
    """The message in one line."""
    return " ".join(str(error).split())


def _import_hint(error: BaseException, plugin: PluginInfo) -> str:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    if package == plugin.module.partition(".")[0]:
        return f"pip install --force-reinstall {plugin.distribution}"
    return f"pip install {package} (or what else brings the module {package!r})"
