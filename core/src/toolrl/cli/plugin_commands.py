"""Commands that plugins bring: `toolrl <plugin> <verb>`; the verb is left out where it is the plugin's name."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import TYPE_CHECKING

from toolrl.cli.common import command_parser
from toolrl.cli.output import UsageError, table
from toolrl.errors import PluginError
from toolrl.plugins.checks import did_you_mean, nearest
from toolrl.plugins.registry import RegisteredComponent, Registry, first_party, install_hint, load_registry

if TYPE_CHECKING:
    from toolrl.protocols import Command


def find(words: list[str], core_commands: Collection[str]) -> tuple[Command | None, argparse.ArgumentParser, list[str]]:
    """The command that `words` name, its parser, and the words left; None where its help was asked for and printed.

    Raises UsageError for a plugin or a verb that there isn't, PluginError for a plugin that can't be used.
    """
    name, *rest = words
    registry = load_registry()
    verbs = _verbs(name, registry, core_commands)
    if name in verbs:  # `toolrl report RUN`: a command of its plugin's name needs no verb.
        return _build(registry, verbs[name]), command_parser(name, verbs[name].component.summary), rest
    if not rest or rest[0] in ("-h", "--help"):
        if not rest:
            raise UsageError(f"toolrl {name}: which command?", hint=f"There are: {', '.join(verbs)}.")
        print(f"usage: toolrl {name} COMMAND …\n\ncommands of the plugin {name}:")
        print(table([(f"  {verb}", found.component.summary) for verb, found in verbs.items()]))
        return None, command_parser(name, ""), []
    verb = rest[0]
    if verb not in verbs:
        raise UsageError(f"the plugin {name!r} has no command {verb!r}", hint=did_you_mean(verb, verbs))
    found = verbs[verb]
    return _build(registry, found), command_parser(f"{name} {verb}", found.component.summary), rest[1:]


def command_words(found: RegisteredComponent) -> str:
    """The words of a plugin's command: `areal convert`, or `report` where verb and plugin have one name."""
    plugin, verb = found.plugin.name, found.component.name
    return plugin if verb == plugin else f"{plugin} {verb}"


def _verbs(name: str, registry: Registry, core_commands: Collection[str]) -> dict[str, RegisteredComponent]:
    """A plugin's commands by name; at least one."""
    plugin = registry.plugin(name)
    if plugin is None:
        if "commands" in first_party().get(name, {}):
            raise UsageError(f"the plugin {name!r} isn't installed", hint=install_hint(name))
        with_commands = sorted({found.plugin.name for found in registry.components("commands")})
        near = nearest(name, [*core_commands, *with_commands])
        raise UsageError(
            f"toolrl has no command {name!r}, and no plugin of that name is installed",
            hint=f"Did you mean `toolrl {near}`?" if near else "`toolrl --help` lists the commands.",
        )
    if not plugin.usable:
        raise PluginError(f"the plugin {name!r} is {plugin.describe()}", hint=plugin.hint)
    verbs = {found.component.name: found for found in registry.components("commands") if found.plugin is plugin}
    if not verbs:
        raise UsageError(f"the plugin {name!r} has no commands", hint="`toolrl --help` lists those of toolrl.")
    return verbs


def _build(registry: Registry, found: RegisteredComponent) -> Command:
    from toolrl.building import build_component
    from toolrl.config.frame import ComponentUse
    from toolrl.protocols import BuildContext

    use = ComponentUse(use=found.qualified)
    command: Command = build_component(registry, "commands", use, BuildContext(name=found.qualified), "")
    return command
