"""`toolrl list-plugins`: the installed plugins, their status and their components."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from toolrl.cli.output import print_json, table
from toolrl.plugins.info import PluginInfo
from toolrl.plugins.registry import Registry, load_registry

HELP = "list the installed plugins and their components"
EXAMPLE = "toolrl list-plugins -v\n  toolrl list-plugins --json"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for each component, with its summary")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    registry = load_registry()
    if args.json:
        print_json({"plugins": [facts(registry, plugin) for plugin in registry.plugins]})
        return 0
    rows = [
        (plugin.name, plugin.version or "-", plugin.status, "\n".join(_details(registry, plugin, args.verbose)))
        for plugin in registry.plugins
    ]
    print(table(rows, header=("NAME", "VERSION", "STATUS", "COMPONENTS")))
    return 0


def facts(registry: Registry, plugin: PluginInfo) -> dict[str, Any]:
    """A plugin as data. `reason` and `next` are None for one whose status is `ok`."""
    components = registry.of_plugin(plugin)
    return {
        "name": plugin.name,
        "distribution": plugin.distribution or None,
        "version": plugin.version or None,
        "status": plugin.status,
        "components": {kind: [it.component.name for it in given] for kind, given in components.items()},
        "clashes": registry.clashes(plugin),
        "reason": plugin.reason or None,
        "next": plugin.hint or None,
    }


def _details(registry: Registry, plugin: PluginInfo, verbose: bool) -> Iterator[str]:
    """The last column's lines."""
    if plugin.reason:
        yield plugin.reason
        if plugin.hint:
            yield f"→ {plugin.hint}"
    if not plugin.usable:
        return
    components = registry.of_plugin(plugin)
    if not components:
        yield "none"
    elif verbose:
        yield table([(kind, it.component.name, it.component.summary) for kind in components for it in components[kind]])
    else:
        for kind, given in components.items():
            yield f"{kind}: {', '.join(it.component.name for it in given)}"
    for line in registry.clashes(plugin):
        yield f"→ {line}"
