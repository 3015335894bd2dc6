"""cli.md: every command with its arguments, from the parsers that read them."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from pagemaker.markdown import code, page, table
from pagemaker.source import registry
from toolrl.cli import main as entry
from toolrl.cli import session
from toolrl.cli.common import PLUGIN_COMMANDS
from toolrl.cli.plugin_commands import command_words, find
from toolrl.plugins.discovery import DISABLE

_INTRO = """\
`toolrl COMMAND --help` says the same. `python -m toolrl` is the same command. `toolrl --version` prints the version.

Every command takes `--debug`, which shows the traceback of an error. With `--json` a command prints one JSON value
(`parse` one a line) on standard output and nothing else, errors too:
`{"error": {"type", "fault", "message", "where", "hint"}}`."""


def make() -> str:
    """The page."""
    lines = {name: line for name, (_, line) in {**entry.COMMANDS, **PLUGIN_COMMANDS}.items()}
    rows = [(f"[{code(name)}](#toolrl-{name})", line) for name, line in lines.items()]
    parts = [_INTRO, table(("command", "what it does"), rows)]
    for name in lines:
        parts += _command(name)
    parts += ["## Commands of plugins", _plugin_commands()]
    parts += ["## Exit status", _exits(), "## Environment variables", _variables()]
    return page("Command line", *parts)


def command_parser(name: str) -> argparse.ArgumentParser:
    """The parser of a command of core, or of a plugin that `toolrl --help` lists."""
    return _with_example(name)[0]


def _with_example(name: str) -> tuple[argparse.ArgumentParser, str]:
    if name in PLUGIN_COMMANDS:
        command, parser, _ = find([name], entry.COMMANDS)
        example = command.example
    else:
        command = importlib.import_module(entry.COMMANDS[name][0])
        example = command.EXAMPLE
        parser = entry.command_parser(name, command.HELP, example)
    command.configure(parser)
    return parser, example


def _command(name: str) -> Iterator[str]:
    parser, text = _with_example(name)
    yield f"## {code(f'toolrl {name}')}"
    yield parser.description + (f" Of `toolrl-plugin-{PLUGIN_COMMANDS[name][0]}`." if name in PLUGIN_COMMANDS else "")
    subparsers = _subparsers(parser)
    if subparsers is None:
        yield _usage(parser)
        yield _arguments(parser)
    else:
        helps = {choice.dest: choice.help or "" for choice in subparsers._choices_actions}
        for action, inner in subparsers.choices.items():
            yield f"**{code(action)}**: {helps[action]}."
            yield _usage(inner)
            yield _arguments(inner)
    example = "\n".join(line.strip() for line in text.splitlines())
    yield f"```sh\n{example}\n```"


def _subparsers(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    return next((it for it in parser._actions if isinstance(it, argparse._SubParsersAction)), None)


def shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """A parser's arguments but for those that every command has."""
    return [it for it in parser._actions if it.dest not in ("help", "debug")]


def _usage(parser: argparse.ArgumentParser) -> str:
    """The usage line; arguments of which only one may be given stand together."""
    groups = {id(action): group for group in parser._mutually_exclusive_groups for action in group._group_actions}
    words, done = [parser.prog], set()
    for action in sorted(shown(parser), key=lambda it: bool(it.option_strings)):
        group = groups.get(id(action))
        if group is None:
            words.append(_word(action))
        elif id(group) not in done:
            done.add(id(group))
            text = " | ".join(_bare(member) for member in group._group_actions)
            words.append(f"({text})" if group.required else f"[{text}]")
    return f"```text\n{' '.join(words)}\n```"


def _word(action: argparse.Action) -> str:
    text = _bare(action)
    optional = not action.required if action.option_strings else action.nargs in ("?", "*")
    more = " …" if isinstance(action, argparse._AppendAction) and action.nargs is None else ""
    return f"[{text}]{more}" if optional else f"{text}{more}"


def _bare(action: argparse.Action) -> str:
    """An argument without its brackets."""
    if not action.option_strings:
        return _value(action)
    name = action.option_strings[-1]
    if action.nargs == 0:
        return name
    return f"{name} {_value(action)}" + (" …" if action.nargs == "+" else "")


def _value(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _arguments(parser: argparse.ArgumentParser) -> str:
    rows = []
    for action in shown(parser):
        if not action.help:
            raise ValueError(f"{parser.prog}: the argument {action.dest!r} has no help")
        names = ", ".join(action.option_strings)
        value = "" if action.option_strings and action.nargs == 0 else _value(action)
        choices = ""
        if action.choices is not None:
            value = "" if names else action.dest.upper()
            choices = f": one of {', '.join(code(str(choice)) for choice in action.choices)}"
        rows.append((code(f"{names} {value}".strip()), f"{action.help}{choices}"))
    return table(("argument", "meaning"), rows)


def _plugin_commands() -> str:
    found = [(code(f"toolrl {command_words(it)}"), it.component.summary)
             for it in registry().components("commands") if it.component.name not in PLUGIN_COMMANDS]  # fmt: skip
    text = (
        "A plugin's command is run as `toolrl PLUGIN VERB …`, without the verb where it is the plugin's name, and "
        "as `toolrl VERB …` where one plugin alone has a command of that name. "
        "`toolrl PLUGIN --help` lists a plugin's commands, and `toolrl PLUGIN VERB --help` shows the arguments of one."
    )
    return text + ("\n\n" + table(("command", "what it does"), found) if found else "")


def _exits() -> str:
    rows = [
        ("0", "done"),
        (str(entry.EXIT_ERROR), "an error; for `doctor`, something was found"),
        (str(entry.EXIT_USAGE), "a command line that can't be understood"),
        *((str(status), f"ended by {number.name}") for number, status in session.EXIT_OF.items()),
        (str(entry.EXIT_PIPE), "whoever read the output closed it"),
    ]
    text = (
        "Ctrl-C and SIGTERM end `train`, `sft`, `eval` and `rollout` in order: the last complete step is saved and the "
        "report written. A second one ends the process at once."
    )
    return table(("status", "meaning"), rows) + "\n" + text


def _variables() -> str:
    rows = [
        (code(f"{DISABLE}=NAME,…"), "plugins, by the name of plugin or distribution, that aren't loaded"),
        (code(f"{entry.DEBUG}=1"), "the same as `--debug`"),
        ("`NO_COLOR=1`", "the observer `console` prints without colours"),
    ]
    return table(("variable", "meaning"), rows)
