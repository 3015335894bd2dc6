"""The command `toolrl`.

The first word picks a module, and only that one is imported: `toolrl list-plugins` must not pay for what `toolrl train`
needs. Any other word may be a plugin's name: `toolrl <plugin> <verb>`. Errors that a user can act
on are printed as a message with the next step and no traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import select
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from toolrl.cli.common import DEBUG, PLUGIN_COMMANDS, command_parser
from toolrl.cli.output import UsageError, print_error, readable, table
from toolrl.errors import ToolrlError
from toolrl.version import __version__

if TYPE_CHECKING:
    from toolrl.protocols import Command

COMMANDS: dict[str, tuple[str, str]] = {
    "list-plugins": ("toolrl.cli.list_plugins", "list the installed plugins and their components"),
    "config": ("toolrl.cli.config", "check or show a config, or print the schema of configs"),
    "train": ("toolrl.cli.train", "train a model by reinforcement learning"),
    "eval": ("toolrl.cli.evaluate", "evaluate a model, or a checkpoint of a run"),
    "rollout": ("toolrl.cli.rollout", "sample episodes without training"),
    "parse": ("toolrl.cli.parse", "show what a parser makes of a text"),
    "status": ("toolrl.cli.status", "show what a run and its workers do now"),
    "new-plugin": ("toolrl.cli.new_plugin", "write a new plugin's package, tests included"),
}
"""Command to its module and its one line in `toolrl --help`; the line equals the module's HELP."""

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPT = 130
EXIT_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, `sys.argv` by default. The exit status: 0, 1 for an error, 2 for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get(DEBUG, "") not in ("", "0")
    while words and words[0] == "--debug":
        debug = True
        del words[0]
    try:
        status = _dispatch(words, debug)
        if sys.stdout is not None:  # None where the shell closed it.
            sys.stdout.flush()
        return status
    except OSError as error:
        # The output's reader is gone, or it can't be written. Python would complain again when it flushes at exit.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return EXIT_PIPE
        with contextlib.suppress(OSError):
            print_error(readable(error))
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPT


def _reader_left() -> bool:
    """Whether standard output is a pipe whose reader is gone: another pipe or socket may be the broken one."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return bool(poll.poll(0))
    return False


def _dispatch(words: list[str], debug: bool) -> int:
    """Find the command, read its arguments, run it; print what goes wrong."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(overview(), file=sys.stdout if words else sys.stderr)
        return 0 if words else EXIT_USAGE
    if words[0] in ("-V", "--version"):
        print(f"toolrl {__version__}")
        return 0
    args = argparse.Namespace()
    try:
        command, parser, rest = _find(words)
        if command is None:
            return 0
        command.configure(parser)
        parser.parse_args(rest, args)
        return command.run(args)
    except Exception as error:  # noqa: BLE001 - printed, with the traceback of a bug
        return _failed(error, args, debug, json="--json" in words)


def run_command(name: str, **arguments: Any) -> int:
    """Run a command of core's with arguments that are read already: the exit status."""
    args = argparse.Namespace(**arguments)
    try:
        status = cast("Command", importlib.import_module(COMMANDS[name][0])).run(args)
    except Exception as error:  # noqa: BLE001 - as `main` does
        status = _failed(error, args, os.environ.get(DEBUG, "") not in ("", "0"))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return status


def _failed(error: Exception, args: argparse.Namespace, debug: bool, *, json: bool = False) -> int:
    """Print what went wrong: the exit status. `debug` and `json` hold where the arguments couldn't be read."""
    if isinstance(error, BrokenPipeError) and _reader_left():
        raise error
    json = getattr(args, "json", json) is True
    hide = getattr(args, "hide", str)
    shown = readable(error)
    if debug or getattr(args, "debug", None) is True or not isinstance(shown, ToolrlError):
        # What is no ToolrlError is a bug, in toolrl or in a plugin, and its traceback is what helps.
        import traceback

        print(hide("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    if json or isinstance(shown, ToolrlError):
        print_error(shown, json=json, hide=hide)
    return shown.exit_status if isinstance(shown, ToolrlError) else EXIT_ERROR


def _find(words: list[str]) -> tuple[Command | None, argparse.ArgumentParser, list[str]]:
    """The command that the first words name, its parser, and the words left. None: its help has been printed."""
    if words[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[words[0]][0])
        return cast("Command", module), command_parser(words[0], module.HELP, module.EXAMPLE), words[1:]
    if words[0].startswith("-"):
        raise UsageError(f"unknown option {words[0]!r} before the command", hint="`toolrl --help` lists the commands.")
    from toolrl.cli import plugin_commands

    return plugin_commands.find(words, COMMANDS)


def overview() -> str:
    """The text of `toolrl --help`. Nothing is imported for it."""
    own = {name: line for name, (_, line) in COMMANDS.items()}
    listed = {name: f"{line} (toolrl-plugin-{plugin})" for name, (plugin, line) in PLUGIN_COMMANDS.items()}
    of_plugins = "run a plugin's command, such as `toolrl report RUN`; `toolrl PLUGIN --help` lists them"
    rows = [(f"  {name}", line) for name, line in {**own, **listed, "PLUGIN VERB": of_plugins}.items()]
    return "\n".join(
        [
            "usage: toolrl [--version] [--debug] COMMAND …",
            "",
            "Reinforcement learning of language models that use tools over many turns.",
            "",
            "commands:",
            table(rows),
            "",
            "`toolrl COMMAND --help` shows a command's arguments and an example.",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
