"""Reads the command line of a start script without running it.

Understood are assignments (`A=1`, `export A=1`, `A=${A:-1}`), arrays (`DATA=(…)`, `"${DATA[@]}"`), quotes, line
continuations, comments, arithmetic (`$((1024 * 2))`), `$(pwd)`, which is the current folder, and `$(dirname "$0")`. A
variable that the script doesn't set is kept as `${NAME}`, unless a default stands beside it. What only a shell can know
(another command's output) is marked as unknown. Loops and conditions aren't followed: their bodies are read as if they
ran once, and `branches` of the command line says so where that decides what is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from toolrl.errors import ConfigError
from toolrl_plugin_verl.convert.arithmetic import evaluate

UNKNOWN = "\ue00f"
"""Stands in a word where a command's output would."""
MAX_CHARS = 1_000_000
MAX_EXPANDED = 200_000
MAX_DEPTH = 20
"""Of defaults inside defaults."""
_ASSIGNMENT = re.compile(r"(?:export\s+|declare\s+(?:-\w+\s+)*|local\s+|readonly\s+)?([A-Za-z_]\w*)(\+?)=")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(?:(:?[-=+?])(.*))?\Z", re.DOTALL)
_REFERENCE = re.compile(r"\.*[A-Za-z_][\w.]*(?::[^`$]*)?\Z")
_TRAINER = re.compile(r"(?:^|[./])main_(?:ppo|dapo|grpo)(?:\.py)?\Z")
_WORDS_OF_SHELL = frozenset(("then", "else", "do", "nohup", "time", "exec", "!"))
_OWN_FOLDER = re.compile(
    r"(?:cd\s+(?:-P\s+|--\s+)?)?(?:\$\(\s*)?dirname\s+(?:--\s+)?(?:\$0|\$\{0\}|\$BASH_SOURCE|\$\{BASH_SOURCE(?:\[0\])?\})\s*\)?"
    r"((?:/[\w.-]+)*)\s*(?:(?:&&|;)\s*pwd(?:\s+-P)?)?"
)
"""`dirname "$0"`, `cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd`: the script's folder, and what follows it."""
_OPENING = frozenset(("if", "case", "for", "while", "until"))
_CLOSING = frozenset(("fi", "esac", "done"))
_ENDS = ";&|\n()"


@dataclass
class CommandLine:
    """The first command of a script that starts verl's trainer."""

    arguments: list[str] = field(default_factory=list)
    """What follows the trainer's name."""
    more: int = 0
    """Further such commands, which aren't read."""
    branches: bool = False
    """True where the command, or what a variable holds, depends on a condition or a loop."""


def trainer_command(text: str, name: str) -> CommandLine:
    """The trainer's command in a script. Raises ConfigError where there is none."""
    if len(text) > MAX_CHARS:
        raise ConfigError(f"a script of more than {MAX_CHARS} characters", where=name)
    found: list[list[str]] = []
    script, branches = _Script(text, name), False
    for words in script.commands():
        at = next((number for number, word in enumerate(words) if _TRAINER.search(word)), None)
        if at is not None:
            branches = branches if found else script.branched
            # There is no main_grpo in verl; guides that name it mean GRPO.
            implied = ["algorithm.adv_estimator=grpo"] if "main_grpo" in words[at] else []
            found.append([*implied, *words[at + 1 :]])
    if not found:
        raise ConfigError(
            "no command here starts verl's trainer: nothing calls main_ppo",
            where=name,
            hint="Give the script that runs `python3 -m verl.trainer.main_ppo …`, or verl's YAML.",
        )
    return CommandLine([word for word in found[0] if word], len(found) - 1, branches)


class _Script:
    def __init__(self, text: str, name: str) -> None:
        self._text = text.replace("\r\n", "\n").replace("\\\n", "  ")
        self._name = name
        self._at = 0
        self._values: dict[str, str] = {}
        self._arrays: dict[str, list[str]] = {}
        self._expanded = 0
        self._depth = 0
        self._inside = 0
        """Conditions and loops that are open."""
        self._linked = False
        """After `&&` or `||`."""
        self._set_inside = False
        """Whether one of these has set a variable."""

    def commands(self) -> Iterator[list[str]]:
        """The words of each command, assignments applied on the way."""
        words: list[str] = []
        while self._at < len(self._text):
            if not self._space():
                break
            character = self._text[self._at]
            if character in _ENDS:
                yield words
                words = []
                self._end_of_command(character)
            elif character in "<>":
                self._redirection()
            elif not words and self._assignment():
                self._set_inside = self._set_inside or self._linked or self._inside > 0
            else:
                for word in self._word():
                    if words or word not in _WORDS_OF_SHELL:
                        self._inside += (word in _OPENING) - (word in _CLOSING) if not words else 0
                        words.append(word)
        yield words

    @property
    def branched(self) -> bool:
        """Whether what is read now depends on a condition or a loop."""
        return self._set_inside or self._linked or self._inside > 0

    def _end_of_command(self, character: str) -> None:
        self._at += 1
        if character in "&|" and self._text[self._at : self._at + 1] == character:
            self._at += 1
            self._linked = True
        elif character in ";\n":
            self._linked = False

    def _space(self) -> bool:
        """Pass over blanks and comments; False at the end."""
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t":
                self._at += 1
            elif character == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return True
        return False

    def _redirection(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in "<>&":
            self._at += 1
        if self._space() and self._text[self._at] not in _ENDS:
            self._word()

    def _assignment(self) -> bool:
        match = _ASSIGNMENT.match(self._text, self._at)
        if match is None:
            return False
        name, add = match[1], bool(match[2])
        self._at = match.end()
        if self._text[self._at : self._at + 1] == "(":
            self._at += 1
            items = self._array_items()
            self._arrays[name] = [*(self._arrays.get(name, []) if add else []), *items]
            return True
        words = self._word() if self._at < len(self._text) and self._text[self._at] not in " \t" + _ENDS else []
        self._values[name] = (self._values.get(name, "") if add else "") + " ".join(words)
        return True

    def _array_items(self) -> list[str]:
        items: list[str] = []
        while self._space():
            character = self._text[self._at]
            if character == ")":
                self._at += 1
                return items
            if character in _ENDS:
                self._at += 1
            elif character in "<>":
                self._redirection()
            else:
                items += self._word()
        raise self._wrong("an array isn't closed")

    def _word(self) -> list[str]:
        """The next word; several where it is an array, none where it is an empty one."""
        pieces: list[str] = []
        several: list[str] | None = None
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in " \t<>" or character in _ENDS:
                break
            self._at += 1
            if character == "'":
                pieces.append(self._until("'"))
            elif character == '"':
                quoted, found = self._double_quoted()
                pieces.append(quoted)
                several = found if found is not None else several
            elif character == "\\":
                pieces.append(self._text[self._at : self._at + 1])
                self._at += 1
            elif character in "$`":
                value = self._substitution(character)
                if isinstance(value, list):
                    several = value
                else:
                    pieces.append(value)
            else:
                pieces.append(character)
        word = "".join(pieces)
        if word.isdigit() and self._text[self._at : self._at + 1] in ("<", ">"):
            return []  # Of a redirection, such as 2>&1.
        if several is not None:
            return several if not word else [*several, word]
        return [word]

    def _double_quoted(self) -> tuple[str, list[str] | None]:
        pieces: list[str] = []
        several: list[str] | None = None
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if character == '"':
                return "".join(pieces), several
            if character == "\\" and self._text[self._at : self._at + 1] in ('"', "\\", "$", "`"):
                pieces.append(self._text[self._at])
                self._at += 1
            elif character in "$`":
                value = self._substitution(character)
                if isinstance(value, list):
                    several = value
                else:
                    pieces.append(value)
            else:
                pieces.append(character)
        raise self._wrong("a \" isn't closed")

    def _until(self, end: str) -> str:
        close = self._text.find(end, self._at)
        if close < 0:
            raise self._wrong(f"a {end} isn't closed")
        text = self._text[self._at : close]
        self._at = close + 1
        return text

    def _substitution(self, mark: str) -> str | list[str]:
        """What stands after `$` or a backtick."""
        if mark == "`":
            return "." if self._until("`").strip() == "pwd" else UNKNOWN
        character = self._text[self._at : self._at + 1]
        if character == "(":
            return self._command(self._balanced("(", ")"))
        if character == "{":
            return self._parameter(self._balanced("{", "}"))
        match = _NAME.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
            return self._variable(match[0], None)
        if character and character in "@*#?$!-0123456789":
            self._at += 1
            return []  # The script's own arguments.
        return mark

    def _command(self, body: str) -> str:
        """What a command prints, of those few that are known, or what an expression comes to."""
        if body.startswith("(") and body.endswith(")"):
            value = evaluate(body[1:-1], self._number)
            return UNKNOWN if value is None else str(value)
        if body.strip() == "pwd":
            return "."
        own = _OWN_FOLDER.fullmatch(body.replace('"', "").strip())
        return UNKNOWN if own is None else f"{PurePosixPath(self._name).parent}{own[1] or ''}"

    def _number(self, name: str) -> str | None:
        found = self._variable(name, None)
        return found if found != f"${{{name}}}" else None

    def _balanced(self, open_: str, close: str) -> str:
        """What stands inside brackets, quotes looked through."""
        start, depth, quote = self._at + 1, 0, ""
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if quote:
                quote = "" if character == quote else quote
            elif character in "'\"":
                quote = character
            elif character == open_:
                depth += 1
            elif character == close:
                depth -= 1
                if depth == 0:
                    return self._text[start : self._at - 1]
        raise self._wrong(f"a {open_} isn't closed")

    def _parameter(self, body: str) -> str | list[str]:
        match = _PARAMETER.match(body)
        if match is None:
            # Not the shell's: a reference of hydra's, which stands in double quotes where it should not.
            return f"${{{body}}}" if _REFERENCE.match(body) else UNKNOWN
        name, array, operator, rest = match.groups()
        if array:
            return self._spent(self._arrays.get(name, []))
        if operator in ("-", ":-", "=", ":="):
            return self._variable(name, rest)
        return self._variable(name, None) if operator is None else UNKNOWN

    def _variable(self, name: str, default: str | None) -> str:
        if name in self._values:
            value = self._values[name]
        elif name in self._arrays:
            value = (self._arrays[name] or [""])[0]
        elif name == "PWD":
            value = "."
        elif default is not None:
            value = " ".join(self._nested(default))
        else:
            value = f"${{{name}}}"
        self._spent([value])
        return value

    def _nested(self, text: str) -> list[str]:
        """A default's own words, which may hold variables."""
        inner = _Script(text, self._name)
        inner._depth = self._depth + 1
        if inner._depth > MAX_DEPTH:
            raise self._wrong("its defaults stand too deep inside each other")
        inner._values, inner._arrays, inner._expanded = self._values, self._arrays, self._expanded + 1
        words: list[str] = []
        while inner._at < len(inner._text):
            before = inner._at
            words += inner._word()
            if inner._at == before:  # A blank or a mark between words.
                inner._at += 1
        self._expanded = inner._expanded
        return words

    def _spent(self, words: list[str]) -> list[str]:
        self._expanded += 1 + sum(map(len, words))
        if self._expanded > MAX_EXPANDED:
            raise self._wrong("its variables expand to too much text")
        return words

    def _wrong(self, what: str) -> ConfigError:
        line = self._text.count("\n", 0, self._at) + 1
        return ConfigError(f"{what} (near line {line})", where=self._name)
