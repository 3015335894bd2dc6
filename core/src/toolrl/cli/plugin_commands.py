"""Commands that plugins bring: `toolrl <plugin> <verb>`; the verb is left out where it is the plugin's name, and the
plugin where no other plugin has the verb."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from typing import TYPE_CHECKING

from toolrl.cli.common import PLUGIN_COMMANDS, command_parser
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
    if name in verbs:  # `toolrl report RUN` and `toolrl sft CONFIG`: one word says both.
        return *_build(registry, verbs[name], name), rest
    if not rest or rest[0] in ("-h", "--help"):
        if not rest:
            raise UsageError(f"toolrl {name}: which command?", hint=f"There are: {', '.join(verbs)}.")
        print(f"usage: toolrl {name} COMMAND …\n\ncommands of the plugin {name}:")
        print(table([(f"  {verb}", found.component.summary) for verb, found in verbs.items()]))
        return None, command_parser(name, ""), []
    verb = rest[0]
    if verb not in verbs:
        raise UsageError(f"the plugin {name!r} has no command {verb!r}", hint=did_you_mean(verb, verbs))
    return *_build(registry, verbs[verb], f"{name} {verb}"), rest[1:]


def command_words(found: RegisteredComponent) -> str:
    """The words of a plugin's command: `areal convert`, `report` where verb and plugin have one name, `sft` as
    `toolrl --help` lists it."""
    plugin, verb = found.plugin.name, found.component.name
    return verb if verb == plugin or verb in PLUGIN_COMMANDS else f"{plugin} {verb}"


def _owner(word: str, registry: Registry) -> str:
    """The plugin of this name, or the only one that has a command of this name, installed or not; else the word itself.
    Raises UsageError where several have one."""
    if registry.plugin(word) is not None or "commands" in first_party().get(word, {}):
        return word
    owners = [it.plugin.name for it in registry.components("commands") if it.component.name == word]
    if not owners:
        owners = [plugin for plugin, names in first_party().items() if word in names.get("commands", ())]
    if len(owners) > 1:
        choices = " or ".join(f"`toolrl {owner} {word}`" for owner in owners)
        raise UsageError(f"{len(owners)} plugins have a command {word!r}", hint=f"Say whose: {choices}.")
    return owners[0] if owners else word


def _verbs(word: str, registry: Registry, core_commands: Collection[str]) -> dict[str, RegisteredComponent]:
    """The commands by name, at least one, of the plugin that the first word of a command line leads to."""
    name = _owner(word, registry)
    plugin = registry.plugin(name)
    if plugin is None:
        if "commands" in first_party().get(name, {}):
            raise UsageError(f"toolrl {word}: the plugin {name!r} isn't installed", hint=install_hint(name))
        with_commands = sorted({found.plugin.name for found in registry.components("commands")})
        near = nearest(name, [*core_commands, *PLUGIN_COMMANDS, *with_commands])
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


def _build(registry: Registry, found: RegisteredComponent, words: str) -> tuple[Command, argparse.ArgumentParser]:
    from toolrl.building import build_component
    from toolrl.config.frame import ComponentUse
    from toolrl.protocols import BuildContext

    use = ComponentUse(use=found.qualified)
    command: Command = build_component(registry, "commands", use, BuildContext(name=found.qualified), "")
    return command, command_parser(words, found.component.summary, getattr(command, "example", ""))
