"""`toolrl doctor`: checks that what is installed works here.

Imports every component's target and options model and runs its self-check, which `toolrl list-plugins` leaves out
because it takes time. A self-check that only misses an optional package says so and counts as no failure.
"""

from __future__ import annotations

import argparse
import platform
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from toolrl import __version__
from toolrl.cli.output import UsageError, print_json, table
from toolrl.component import Component
from toolrl.config.components import options_model
from toolrl.errors import ComponentLoadError, ToolrlError
from toolrl.kinds import KINDS
from toolrl.plugins.checks import did_you_mean
from toolrl.plugins.info import PluginInfo
from toolrl.plugins.registry import Registry, load_registry
from toolrl.protocols import Command

OK, FAILED, UNAVAILABLE, CLASH = "ok", "failed", "unavailable", "clash"
LIBRARIES = ("pydantic", "torch", "transformers", "peft", "vllm", "ray")


@dataclass(frozen=True)
class Finding:
    """The result for one component, or for a plugin as a whole."""

    plugin: str
    status: str
    """`ok`, `failed`, `unavailable` (an optional package is missing), `clash` (another plugin gives a component of this
    name), or the plugin's own status."""
    kind: str = ""
    name: str = ""
    detail: str = ""
    next: str = ""
    traceback: str = ""

    @property
    def is_failure(self) -> bool:
        return self.status not in (OK, UNAVAILABLE, CLASH, "disabled")


class DoctorCommand(Command):
    """`toolrl doctor [PLUGIN]`."""

    example = "toolrl doctor\n  toolrl doctor calculator"

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument("plugin", nargs="?", help="only this plugin, with tracebacks")
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Check and print; 1 where something failed."""
        registry = load_registry()
        plugins = _selected(registry, args.plugin)
        findings: list[Finding] = []
        for number, plugin in enumerate(plugins, start=1):
            _show_progress(f"checking {plugin.name} ({number} of {len(plugins)})")
            findings += examine(plugin)
            findings += [Finding(plugin.name, CLASH, detail=line) for line in registry.clashes(plugin)]
        failures = sum(finding.is_failure for finding in findings)
        facts = {} if args.plugin else machine()
        _show_progress("")
        if args.json:
            print_json(
                {
                    "ok": not failures,
                    "machine": facts or None,
                    "findings": [{k: v or None for k, v in vars(finding).items()} for finding in findings],
                }
            )
            return 1 if failures else 0
        if facts:
            print(table([(name, value or "not installed") for name, value in facts.items()]) + "\n")
        _print(findings, tracebacks=bool(args.plugin))
        missing, clashes = (sum(it.status == status for it in findings) for status in (UNAVAILABLE, CLASH))
        counts = f"{failures} failed, {missing} unavailable" + (f", {clashes} clashes of names" if clashes else "")
        print(f"\n{counts}" if failures or missing or clashes else "\neverything works")
        return 1 if failures else 0


def _show_progress(text: str) -> None:
    """On standard error: a line that the next one takes the place of, where that is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def _selected(registry: Registry, name: str | None) -> list[PluginInfo]:
    if name is None:
        return registry.plugins
    chosen = [plugin for plugin in registry.plugins if name in (plugin.name, plugin.distribution)]
    if not chosen:
        names = [plugin.name for plugin in registry.plugins]
        raise UsageError(f"no plugin is named {name!r}", hint=did_you_mean(name, names, "Installed"))
    return chosen


def examine(plugin: PluginInfo) -> Iterator[Finding]:
    """Everything of one plugin: one finding for each component, or one for all where it can't be used."""
    if plugin.status != OK:
        yield Finding(plugin.name, plugin.status, detail=plugin.reason, next=plugin.hint, traceback=plugin.traceback)
    if not plugin.usable:
        return
    for kind in KINDS:
        for component in plugin.components.get(kind, []):
            yield _component(plugin, kind, component)


def _component(plugin: PluginInfo, kind: str, component: Component[Any]) -> Finding:
    """Import a component's parts and run its self-check."""
    try:
        target = component.load()
        if kind != "tools" and not callable(target):
            raise ComponentLoadError(
                f"its target {component.target!r} is a {type(target).__name__} and can't be called"
            )
        options_model(component)
        check = component.load_check()
    except ComponentLoadError as error:
        return _finding(plugin, kind, component, error, FAILED)
    try:
        detail = check() if check is not None else ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a plugin's check raises is its finding
        return _finding(plugin, kind, component, error, UNAVAILABLE if _is_missing_package(error) else FAILED)
    return Finding(plugin.name, OK, kind, component.name, str(detail or ""))


def _finding(plugin: PluginInfo, kind: str, component: Component[Any], error: BaseException, status: str) -> Finding:
    message = error.message if isinstance(error, ToolrlError) else f"{type(error).__name__}: {error}"
    hint = error.hint if isinstance(error, ToolrlError) else None
    trace = "".join(traceback.format_exception(error)).rstrip()
    return Finding(plugin.name, status, kind, component.name, message, hint or "", trace)


def _is_missing_package(error: BaseException | None) -> bool:
    """True where a package that isn't installed is behind an exception."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            return True
        error = error.__cause__ or error.__context__
    return False


def machine() -> dict[str, str]:
    """Versions; empty for what isn't installed."""
    facts = {"toolrl": __version__, "python": platform.python_version()}
    for name in LIBRARIES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = ""
    return facts


def _print(findings: list[Finding], *, tracebacks: bool) -> None:
    rows = []
    for finding in findings:
        detail = finding.detail + (f"\n→ {finding.next}" if finding.next else "")
        rows.append((finding.plugin, finding.kind or "-", finding.name or "-", finding.status, detail))
    print(table(rows, header=("PLUGIN", "KIND", "COMPONENT", "STATUS", "DETAIL")))
    for finding in findings:
        if finding.is_failure and finding.traceback and (tracebacks or finding.status == "broken"):
            print(f"\n{'/'.join(part for part in (finding.plugin, finding.name) if part)}:\n{finding.traceback}")
