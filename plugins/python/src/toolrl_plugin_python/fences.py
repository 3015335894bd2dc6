"""Python in a model's text, out of the Markdown fences around it."""

from __future__ import annotations

import re
import textwrap

_FENCE = re.compile(r"\s*+(`{3,}+|~{3,}+)\s*+([^\s`]*+)[^`]*+")
_PYTHON = frozenset({"python", "python3", "py", "py3"})
_CALLED = {"", "py", "python", "python3", "ipython", "pycon", "tool_code"}
"""Languages of the fence that a call's code may be wrapped in."""


def runnable(text: str) -> str:
    """The code without the Markdown fence that it is wrapped in, and without an indentation that all of it has."""
    lines = re.sub(r"\A(?:[ \t\r]*+\n)++", "", text.rstrip()).split("\n")
    if lines[0].lstrip().startswith("```") and lines[0].strip()[3:].strip().lower() in _CALLED:
        del lines[0]
        if lines and lines[-1].strip() == "```":
            del lines[-1]
    code = "\n".join(lines)
    first = next((line for line in lines if line.strip()), "")
    return textwrap.dedent(code) if first[:1] in (" ", "\t") else code


def solution(text: str) -> str | None:
    """The program, or None where there is none. A block that isn't closed runs to the end."""
    marked: str | None = None
    unmarked: str | None = None
    for language, code in _blocks(text):
        if language in _PYTHON:
            marked = code
        elif not language:
            unmarked = code
    return unmarked if marked is None else marked


def _blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks in order: the language, and what stands between the fences."""
    found: list[tuple[str, str]] = []
    fence, language = "", ""
    inside: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.fullmatch(line)
        if not fence:
            if match is not None:
                fence, language, inside = match[1], match[2].lower().strip("{}."), []
        elif match is not None and not match[2] and match[1][0] == fence[0] and len(match[1]) >= len(fence):
            found.append((language, "\n".join(inside)))
            fence = ""
        else:
            inside.append(line)
    if fence:
        found.append((language, "\n".join(inside)))
    return found
