"""Every command line that a page shows can be typed: it is read by the real parsers, and not run.

Whole lines stand in blocks of the languages `sh` and `console`. In running text a command may be shortened, so there
only its name and its options have to exist. Sessions of nox, scripts with their options, and files of this repository
have to exist too.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from doc_pages import ROOT, Block, blocks
from pagemaker.cli_page import command_parser

from toolrl.cli.common import PLUGIN_COMMANDS
from toolrl.cli.main import COMMANDS
from toolrl.cli.output import UsageError
from toolrl.cli.plugin_commands import find
from toolrl.errors import ComponentLoadError

WITH_ARGUMENTS = {*COMMANDS, *PLUGIN_COMMANDS}
"""Commands whose arguments the page of the command line has."""
SESSIONS = set(re.findall(r"^@nox\.session.*\n(?:@.*\n)*def (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
_OPERATORS = {"&&", "||", "|", ";", "&"}


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block as words, with environment variables and redirections left out."""
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    for line in text.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words: list[str] = []
        for word in [*lexer, ";"]:
            if word in _OPERATORS:
                yield _without_setting(words)
                words = []
            else:
                words.append(word)


def _without_setting(words: list[str]) -> list[str]:
    while words and re.match(r"[A-Z_]+=", words[0]):
        words = words[1:]
    for redirection in (">", ">>", "<", "2>"):
        if redirection in words:
            words = words[: words.index(redirection)]
    return words


def check(words: list[str]) -> None:
    """Raises ValueError for a command that can't be typed."""
    if words[:3] in (["python", "-m", "toolrl"], ["python3", "-m", "toolrl"]):
        words = words[2:]
    if words[:1] in (["torchrun"], ["watch"]) and "toolrl" in words:
        words = words[words.index("toolrl") :]
    for word in words:
        if word.startswith(("docs/", "plugins/", "./plugins/")) and not _exists(word.partition("[")[0]):
            raise ValueError(f"there is no {word}")
    if words[:1] == ["toolrl"]:
        _check_toolrl(words[1:])
    elif words[:2] == ["nox", "-s"]:
        name = words[2].partition("(")[0]
        if name not in SESSIONS:
            raise ValueError(f"nox has no session {name!r}")
    elif words[:1] == ["python"] and len(words) > 1 and words[1].endswith(".py"):
        script = (ROOT / words[1]).read_text(encoding="utf-8")
        if unknown := [word for word in words[2:] if word.startswith("--") and f'"{word}"' not in script]:
            raise ValueError(f"{words[1]} has no option {', '.join(unknown)}")


def _exists(name: str) -> bool:
    return any(ROOT.glob(name.removeprefix("./")))


def _check_toolrl(words: list[str]) -> None:
    if not words or words[0] in ("--help", "--version"):
        return
    name, *rest = words
    if name in WITH_ARGUMENTS:
        parser = command_parser(name)
    else:
        try:
            command, parser, rest = find(words, COMMANDS)
        except UsageError as error:
            raise ValueError(f"toolrl {' '.join(words)}: {error}") from error
        except ComponentLoadError:
            return  # What the command needs isn't installed here.
        if command is not None:
            command.configure(parser)
    if "--help" in rest:
        return
    try:
        parser.parse_args(rest)
    except SystemExit as error:
        raise ValueError(f"toolrl {' '.join(words)}: its arguments can't be read") from error


@pytest.mark.parametrize("block", blocks("sh", "bash", "console"), ids=str)
def test_commands_can_be_typed(block: Block) -> None:
    for words in commands(block):
        check(words)
