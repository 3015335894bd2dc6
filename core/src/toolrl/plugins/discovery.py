"""Finds installed plugins, in two steps.

First the metadata: the entry points of the group `toolrl.plugins`, and of each one's distribution its name, version and
`Requires-Dist: toolrl…`, which is checked against the running version. Nothing of a plugin is imported for that. Then
each plugin's module is imported, each under its own guard, so that one that can't be imported stops no other.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING

import importlib_metadata

from toolrl.plugins.info import PluginInfo

if TYPE_CHECKING:
    from packaging.requirements import Requirement

GROUP = "toolrl.plugins"
DISABLE = "TOOLRL_DISABLE"
CORE = "toolrl"


@dataclass(frozen=True)
class Candidate:
    """An entry point with what its distribution's metadata says."""

    entry_point: importlib_metadata.EntryPoint
    distribution: str
    version: str
    requires: Sequence[str]
    """Its `Requires-Dist` lines."""

    @property
    def name(self) -> str:
        return str(self.entry_point.name)

    def info(self) -> PluginInfo:
        return PluginInfo(self.name, self.distribution, self.version)


def find_candidates() -> list[Candidate]:
    """All installed entry points of the group, by name. Imports no plugin."""
    found = importlib_metadata.entry_points(group=GROUP)
    return sorted((_candidate(point) for point in found), key=lambda it: (it.name, it.distribution))


def _candidate(point: importlib_metadata.EntryPoint) -> Candidate:
    dist = point.dist
    try:
        metadata = dist.metadata if dist is not None else None
    except FileNotFoundError:
        metadata = None
    if metadata is None:  # A folder without METADATA, as an interrupted installation leaves it.
        return Candidate(point, "", "", ())
    return Candidate(
        point,
        str(metadata.get("Name") or ""),
        str(metadata.get("Version") or ""),
        tuple(str(line) for line in metadata.get_all("Requires-Dist") or ()),
    )


def examine(
    candidates: Sequence[Candidate], *, running: str, disabled: Set[str] = frozenset()
) -> list[tuple[Candidate, PluginInfo]]:
    """What metadata alone says of each candidate: disabled, incompatible, one of two with one name, or ok so far.

    `running` is toolrl's version; `disabled` holds names of plugins or distributions.
    """
    wanted: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if not disabled & {candidate.name, candidate.distribution}:
            wanted.setdefault(candidate.name, []).append(candidate)
    result = []
    for candidate in candidates:
        info = candidate.info()
        rivals = wanted.get(candidate.name, [])
        if candidate not in rivals:
            info = replace(info, status="disabled", reason=f"named in {DISABLE}", hint=f"Take it out of {DISABLE}.")
        elif len(rivals) > 1:
            info = _clash(info, rivals)
        else:
            info = _compatible(candidate, info, running)
        result.append((candidate, info))
    return result


def _clash(info: PluginInfo, rivals: Sequence[Candidate]) -> PluginInfo:
    """Two entry points of one name: neither wins."""
    names = " and ".join(f"{it.distribution or 'a distribution without name'} {it.version}".strip() for it in rivals)
    return replace(
        info,
        status="broken",
        reason=f"{len(rivals)} distributions bring a plugin named {info.name!r}: {names}",
        hint=f"pip uninstall {info.distribution}, or set {DISABLE}={info.distribution}, to use the other one.",
    )


def _compatible(candidate: Candidate, info: PluginInfo, running: str) -> PluginInfo:
    """Checks `Requires-Dist: toolrl…` against the running version."""
    if candidate.distribution == CORE or not candidate.requires:
        return info
    from packaging.requirements import InvalidRequirement, Requirement

    for line in candidate.requires:
        if not line.lower().startswith(CORE):
            continue
        try:
            need = Requirement(line)
        except InvalidRequirement as error:
            return replace(
                info,
                status="broken",
                reason=f"its metadata has the line 'Requires-Dist: {line}', which can't be read: {_line(error)}",
                hint=f"pip install --force-reinstall {info.distribution}",
            )
        applies = need.marker is None or need.marker.evaluate({"extra": ""})
        if need.name.lower() == CORE and applies and not need.specifier.contains(running, prereleases=True):
            return replace(
                info,
                status="incompatible",
                reason=f"{info.distribution} {info.version} needs toolrl {need.specifier}, this is toolrl {running}",
                hint=_matching_versions(need, info, running),
            )
    return info


def _matching_versions(need: Requirement, info: PluginInfo, running: str) -> str:
    """The command that brings plugin and core together: whichever of them is the older one is upgraded."""
    from packaging.version import InvalidVersion, Version

    for part in need.specifier:
        try:
            bound = Version(part.version.removesuffix(".*"))
        except InvalidVersion:
            continue
        if part.operator in (">=", ">", "==", "~=") and bound > Version(running):
            return f'pip install -U "toolrl{need.specifier}"'
    return f"pip install -U {info.distribution}"


def import_plugin(candidate: Candidate, info: PluginInfo) -> tuple[ModuleType | None, PluginInfo]:
    """Imports the plugin's module. Whatever that raises, SystemExit too, marks this plugin as broken and no other."""
    value = candidate.entry_point.value
    try:
        module = candidate.entry_point.load()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin's fault must not end the program
        return None, broken(info, error, hint=_import_hint(error, value, info))
    if not isinstance(module, ModuleType):
        reason = f"its entry point {info.name} = {value!r} gives a {type(module).__name__}, expected a module"
        return None, replace(info, status="broken", reason=reason, hint=f"Write {value.partition(':')[0]!r} there.")
    return module, info


def broken(info: PluginInfo, error: BaseException, *, hint: str = "") -> PluginInfo:
    """The plugin marked as broken by an exception, whose traceback is kept."""
    return replace(
        info,
        status="broken",
        reason=f"{type(error).__name__}: {_line(error)}" if str(error) else type(error).__name__,
        hint=hint or f"toolrl doctor {info.name} shows the traceback.",
        traceback="".join(traceback.format_exception(error)).rstrip(),
    )


def _import_hint(error: BaseException, value: str, info: PluginInfo) -> str:
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return ""
    package = error.name.partition(".")[0]
    if package == value.partition(".")[0]:
        return f"pip install --force-reinstall {info.distribution}"
    return f"pip install {package} (or what else brings the module {package!r})"


def _line(error: BaseException) -> str:
    """The message in one line."""
    return " ".join(str(error).split())
