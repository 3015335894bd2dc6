"""`toolrl completion`: a script that lets a shell complete commands, options, files and names of components.

The script is made once, from the parsers of all installed commands, so that completing starts no Python.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from pathlib import Path

import shtab

from toolrl.cli.common import PLUGIN_COMMANDS
from toolrl.cli.main import COMMANDS, overview
from toolrl.cli.plugin_commands import command_words, find
from toolrl.errors import PluginError
from toolrl.plugins.registry import load_registry
from toolrl.protocols import Command

_OF_KIND = {"parser": "parsers", "tool": "tools", "reward": "rewards"}
"""Arguments that name components, by their kind."""
_FILES = ("config", "data", "eval", "run")


class CompletionCommand(Command):
    """The command."""

    example = """toolrl completion bash > ~/.local/share/bash-completion/completions/toolrl
  toolrl completion zsh > ~/.zfunc/_toolrl
  toolrl completion fish > ~/.config/fish/completions/toolrl.fish"""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that reads the script")

    def run(self, args: argparse.Namespace) -> int:
        """Print the script."""
        print(shtab.complete(whole_parser(), shell=args.shell))
        return 0


def whole_parser() -> argparse.ArgumentParser:
    """One parser with all commands, those of plugins included."""
    root = argparse.ArgumentParser("toolrl", description=overview().splitlines()[2])
    root.add_argument("--version", action="store_true", help="print the version")
    commands = root.add_subparsers(dest="command")
    for name, (module, line) in COMMANDS.items():
        _add(commands.add_parser, name, line, importlib.import_module(module).configure)
    groups: dict[str, Callable[..., argparse.ArgumentParser]] = {}
    for found in load_registry().components("commands"):
        *plugin, verb = command_words(found).split()
        try:
            command, _, _ = find([found.plugin.name, found.component.name], COMMANDS)
        except PluginError:  # Such as a missing library: `toolrl doctor` reports it.
            continue
        assert command is not None
        adds = commands.add_parser
        if plugin:
            if plugin[0] not in groups:
                group = commands.add_parser(plugin[0], help=f"commands of the plugin {plugin[0]}")
                groups[plugin[0]] = group.add_subparsers(dest="verb").add_parser
            adds = groups[plugin[0]]
        line = PLUGIN_COMMANDS.get(verb, ("", found.component.summary))[1]
        _add(adds, verb, line, command.configure)
    return root


def _add(
    adds: Callable[..., argparse.ArgumentParser],
    name: str,
    line: str,
    configure: Callable[[argparse.ArgumentParser], None],
) -> None:
    parser = adds(name, help=line, conflict_handler="resolve")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    configure(parser)
    _complete(parser)


def _complete(parser: argparse.ArgumentParser) -> None:
    """Say what each argument's value is completed from."""
    registry = load_registry()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                _complete(inner)
        elif action.dest in _OF_KIND and action.choices is None:
            action.choices = registry.names(_OF_KIND[action.dest])
        elif action.dest == "plugin" and not action.option_strings:
            action.choices = [plugin.name for plugin in registry.plugins]
        elif action.dest in _FILES or action.type is Path:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
