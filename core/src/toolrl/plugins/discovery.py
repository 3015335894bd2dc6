"""Finds installed plugins, in two steps.

First the metadata: the entry points of the group `toolrl.plugins`, and of each one's distribution its name, version and
`Requires-Dist: toolrl…`, which is checked against the running version. Nothing of a plugin is imported for that. Then
each plugin's module is imported, each under its own guard, so that one that can't be imported stops no other.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from types import ModuleType

import importlib_metadata

from toolrl.plugins.info import PluginInfo
from toolrl.plugins.versions import CORE, unmet_requirement

GROUP = "toolrl.plugins"
DISABLE = "TOOLRL_DISABLE"


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
    text = (dist.read_text("METADATA") or dist.read_text("PKG-INFO")) if dist is not None else None
    # An interrupted installation leaves no metadata.
    headers = _headers(text or "")
    name, version = (headers.get(key, [""])[0] for key in ("name", "version"))
    return Candidate(point, name, version, tuple(headers.get("requires-dist", ())))


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


def examine(
    candidates: Sequence[Candidate], *, running: str, disabled: Set[str] = frozenset()
) -> list[tuple[Candidate, PluginInfo]]:
    """Each candidate's status by its metadata: disabled, incompatible, one of two with one name, or ok so far.

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
    if candidate.distribution == CORE:
        return info
    for line in candidate.requires:
        try:
            unmet = unmet_requirement(line, running)
        except ValueError as error:
            return replace(
                info,
                status="broken",
                reason=f"its metadata has the line 'Requires-Dist: {line}', which can't be read: {_line(error)}",
                hint=f"pip install --force-reinstall {info.distribution}",
            )
        if unmet is not None:
            needed, core_is_older = unmet
            return replace(
                info,
                status="incompatible",
                reason=f"{info.distribution} {info.version} needs toolrl {needed}, this is toolrl {running}",
                hint=f'pip install -U "toolrl{needed}"' if core_is_older else f"pip install -U {info.distribution}",
            )
    return info


def import_plugin(candidate: Candidate, info: PluginInfo) -> tuple[ModuleType | None, PluginInfo]:
    """Imports the plugin's module. Whatever that raises, SystemExit too, marks this plugin as broken and no other. What
    it prints goes to standard error: standard output belongs to the command that runs."""
    value = candidate.entry_point.value
    try:
        with contextlib.redirect_stdout(sys.stderr):
            module = candidate.entry_point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a plugin's fault must not end the program
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
