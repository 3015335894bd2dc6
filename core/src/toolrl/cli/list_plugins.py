"""`toolrl list-plugins`: the installed plugins, their status and their components."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from toolrl.cli.output import print_json, table
from toolrl.kinds import KINDS
from toolrl.plugins.info import PluginInfo
from toolrl.plugins.registry import load_registry

HELP = "list the installed plugins and their components"
EXAMPLE = "toolrl list-plugins -v\n  toolrl list-plugins --json"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each component, with its summary")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    plugins = load_registry().plugins
    if args.json:
        print_json({"plugins": [facts(plugin) for plugin in plugins]})
        return 0
    rows = [
        (plugin.name, plugin.version or "-", plugin.status, "\n".join(_details(plugin, verbose=args.verbose)))
        for plugin in plugins
    ]
    print(table(rows, header=("NAME", "VERSION", "STATUS", "COMPONENTS")))
    return 0


def facts(plugin: PluginInfo) -> dict[str, Any]:
    """A plugin as data. `reason` and `next` are None for one that can be used."""
    return {
        "name": plugin.name,
        "distribution": plugin.distribution or None,
        "version": plugin.version or None,
        "status": plugin.status,
        "components": {kind: [it.name for it in components] for kind, components in plugin.components.items()},
        "reason": plugin.reason or None,
        "next": plugin.hint or None,
    }


def _details(plugin: PluginInfo, *, verbose: bool) -> Iterator[str]:
    """The last column's lines."""
    if not plugin.usable:
        yield plugin.reason
        if plugin.hint:
            yield f"→ {plugin.hint}"
        return
    if not plugin.components:
        yield "none"
    if verbose:
        rows = [
            (kind, component.name, component.summary) for kind in KINDS for component in plugin.components.get(kind, [])
        ]
        yield table(rows)
        return
    for kind in KINDS:
        if kind in plugin.components:
            yield f"{kind}: {', '.join(component.name for component in plugin.components[kind])}"
