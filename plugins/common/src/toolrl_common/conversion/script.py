"""Reads the commands of a shell script without running it.

Understood are assignments (`A=1`, `export A=1`, `A=${A:-1}`), arrays (`DATA=(…)`, `"${DATA[@]}"`), quotes, line
continuations, comments, arithmetic (`$((1024 * 2))`) and `$(pwd)`, which is the current folder. A variable that the
script doesn't set stays `${NAME}`, unless a default stands beside it. What only a shell can know
(another command's output) is marked as unknown. Loops and conditions aren't followed: their bodies are read as if they
ran once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from toolrl.errors import ConfigError

UNKNOWN = "\ue00f"
"""Stands in a word where a command's output would."""


def _nested(opening: str, closing: str) -> str:
    """A pattern of what stands in brackets, brackets in it included, some levels deep."""
    inner = rf"[^{opening}{closing}]"
    for _ in range(6):
        inner = rf"(?:[^{opening}{closing}]|{opening}{inner}*+{closing})"
    return rf"{opening}{inner}*+{closing}"


_PARENTHESES, _BRACES = _nested(r"\(", r"\)"), _nested(r"\{", r"\}")
_DOLLAR = rf"\$(?:{_PARENTHESES}|{_BRACES}|[A-Za-z_]\w*|[@*#?!$0-9-])|`[^`]*`"
_DOUBLE = rf"\"(?:\\.|{_DOLLAR}|[^\"\\])*+\""
_TOKEN = re.compile(
    r"(?P<space>[ \t]+|#[^\n]*)|(?P<copy>\d*[<>]+&[\d-]+)|(?P<redirection>\d*[<>]+|&>+)|(?P<end>\|\||&&|[;&|\n()])"
    rf"|(?P<array>[A-Za-z_]\w*\+?=\()|(?P<word>(?:'[^']*'|{_DOUBLE}|{_DOLLAR}|\\(?:.|\Z)|[^\s'\"\\`;&|<>()$]|\$(?![({{]))++)",
    re.DOTALL,
)
_PIECE = re.compile(rf"'(?P<single>[^']*)'|(?P<double>{_DOUBLE})|\\(?P<escaped>.|\Z)|(?P<dollar>{_DOLLAR})", re.DOTALL)
_QUOTED = re.compile(rf"\\(?P<escaped>[\"\\$`])|(?P<dollar>{_DOLLAR})", re.DOTALL)
_ARRAY = re.compile(r"\"?\$\{([A-Za-z_]\w*)\[[@*]\]\}\"?\Z")
_ARGUMENTS = re.compile(r"\"?\$(?:[@*0-9]|\{[@*0-9]\})\"?\Z")
_BARE = re.compile(r"\$(?:[A-Za-z_]\w*|\{[A-Za-z_]\w*\})\Z")
"""A variable that stands alone and without quotes, whose value a shell splits into words."""
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)\Z", re.DOTALL)
_PARAMETER = re.compile(r"([A-Za-z_]\w*)(\[[@*]\])?(?:(:?[-=+?])(.*))?\Z", re.DOTALL)
_REFERENCE = re.compile(r"\.*[A-Za-z_][\w.]*(?::[^`$]*)?\Z")
_BEFORE = ("export", "declare", "local", "readonly", "then", "else", "do", "nohup", "time", "exec", "!")
_NAME = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_SUM = re.compile(r"(?:(?!\*\*|//)[0-9()+*/% -]){1,200}")


def read_script(text: str, name: str) -> Iterator[list[str]]:
    """The words of each command. Raises ConfigError for a quote or bracket that isn't closed."""
    return _Script(name).commands(text.replace("\r\n", "\n").replace("\\\n", "  "))


class _Script:
    def __init__(self, name: str) -> None:
        self._name = name
        self._values: dict[str, str] = {"PWD": "."}
        self._arrays: dict[str, list[str]] = {}

    def commands(self, text: str) -> Iterator[list[str]]:
        words: list[str] = []
        tokens = self._tokens(text)
        for kind, token in tokens:
            match = _ASSIGNMENT.match(token) if kind == "word" and not words else None
            if match is not None:
                self._assign(match)
            elif kind == "array":
                self._fill_array(token, tokens)
            elif kind == "redirection":
                next(tokens, None)  # Its file.
            elif kind == "end":
                yield words
                words = []
            elif words or token not in _BEFORE:
                words += self._expanded(token)
        yield words

    def _tokens(self, text: str) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                mark = text[at] if text[at] != "$" else text[at : at + 2]
                line = text.count("\n", 0, at) + 1
                raise ConfigError(f"a {mark} isn't closed (near line {line})", where=self._name)
            at = match.end()
            if match.lastgroup not in ("space", "copy"):
                yield str(match.lastgroup), match[0]

    def _fill_array(self, opening: str, tokens: Iterator[tuple[str, str]]) -> None:
        name = opening.rstrip("+=(")
        items = list(self._arrays.get(name, [])) if "+" in opening else []
        for kind, token in tokens:
            if token == ")":
                self._arrays[name] = items
                return
            if kind == "word":
                items += self._expanded(token)
        raise ConfigError("an array isn't closed", where=self._name)

    def _assign(self, match: re.Match[str]) -> None:
        name, add, raw = match.groups()
        self._values[name] = (self._values.get(name, "") if add else "") + " ".join(self._expanded(raw))

    def _expanded(self, raw: str) -> list[str]:
        """The words that a word becomes: those of an array, none of the script's own arguments, else one."""
        array = _ARRAY.match(raw)
        if array is not None:
            return self._arrays.get(array[1], [])
        if _BARE.match(raw):
            return self._text(raw).split()
        return [] if _ARGUMENTS.match(raw) else [self._text(raw)]

    def _text(self, raw: str) -> str:
        """A word without its quotes, variables and commands replaced."""
        return _PIECE.sub(self._piece, raw)

    def _piece(self, match: re.Match[str]) -> str:
        found = match.groupdict()
        if found.get("double") is not None:
            return _QUOTED.sub(self._piece, found["double"][1:-1])
        plain = found.get("single") if found.get("single") is not None else found["escaped"]
        return self._substituted(found["dollar"]) if plain is None else plain

    def _substituted(self, text: str) -> str:
        """The text in the place of `$NAME`, `${…}`, `$((…))`, `$(…)` or a command in backticks."""
        if text.startswith("$(("):
            return self._computed(text[3:-2])
        if text.startswith(("$(", "`")):
            command = text.strip("$`") if text.startswith("`") else text[2:-1]
            return "." if command.strip() == "pwd" else UNKNOWN
        if text.startswith("${"):
            return self._parameter(text[2:-1])
        return self._variable(text[1:], None) if text[1].isalpha() or text[1] == "_" else ""

    def _parameter(self, body: str) -> str:
        match = _PARAMETER.match(body)
        if match is None:
            # Not the shell's: a reference of OmegaConf's, which stands in double quotes where it should not.
            return f"${{{body}}}" if _REFERENCE.match(body) else UNKNOWN
        name, array, sign, default = match.groups()
        if array:
            return " ".join(self._arrays.get(name, []))
        return UNKNOWN if sign and sign[-1] not in "-=" else self._variable(name, default)

    def _variable(self, name: str, default: str | None) -> str:
        if name in self._values:
            return self._values[name]
        if name in self._arrays:
            return (self._arrays[name] or [""])[0]
        return f"${{{name}}}" if default is None else self._text(default)

    def _computed(self, text: str) -> str:
        """The value of an arithmetic expression."""
        plain = _NAME.sub(lambda match: f"({self._variable(match[1], None)})", text)
        try:
            # Digits, brackets and five operations alone: nothing else is evaluated. Decimal's division truncates.
            written = re.sub(r"\d+", r"D(\g<0>)", plain).replace("/", "//")
            return str(int(eval(written, {"D": Decimal}))) if _SUM.fullmatch(plain) else UNKNOWN
        except (SyntaxError, TypeError, ArithmeticError, RecursionError, MemoryError):
            return UNKNOWN
