"""Docstrings of tools: the description that the model reads, and a description of each parameter.

`docstring_parser` reads Sphinx, numpy and Epydoc style. Sections such as `Args:` are read here by the names of the
parameters, as people write them in more ways than the library takes: first in the docstring, as a list, in quotes or
bold, with continued lines that aren't indented.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection

_HEADER = re.compile(
    r"\s*(#+\s*)?[*_]*(args|arguments|params|parameters|inputs|(other|keyword) (args|arguments|parameters))[*_]*"
    r"(?P<colon>:)?[*_]*\s*$",
    re.IGNORECASE,
)
_SECTION = re.compile(r"\s*(#+\s+|\*\*)?[A-Z]\w*( \w+)?(:\**|\*\*:?)\s*$|\s*#+\s")
"""The header of another section, such as `Returns:` or `**Example**`."""
_ITEM = re.compile(
    r"(?P<indent>\s*)([-*+•]\s+)?(?P<names>[*`_]*\w+[*`]*(\s*,\s*[*`_]*\w+[*`]*)*)\s*"
    r"(\((?P<type>[^()]*(\([^()]*\)[^()]*)*)\)|\[[^]]*\])?\s*(?::(?!:)|(?<=\s)(?:--?|–|—)(?=\s))\s*(?P<text>.*)$"
)
_FIELD = re.compile(r"[:@](param|parameter|arg|argument|key|keyword|type|returns?|rtype|raises?|yields?)\b")
_NONE = "\0"
"""Stands for a summary, without which docstring_parser takes a section for it."""


def read_docstring(text: str, names: Collection[str]) -> tuple[str, dict[str, str]]:
    """The description before the sections, and the descriptions of the parameters that are among `names`."""
    import docstring_parser

    lines = _fields_last(inspect.cleandoc(text).splitlines())
    rest, items = _argument_sections(lines, names)
    parsed = docstring_parser.parse("\n".join(rest if rest and _leads(rest[0]) else [_NONE, "", *rest]))
    parts = [it for it in (parsed.short_description, parsed.long_description) if it and it != _NONE]
    for param in parsed.params:
        for name in _named(param.arg_name, param.args, names):
            items.setdefault(name, param.description or "")
    described = {name: " ".join(item.split()) for name, item in items.items()}
    between = "\n\n" if parsed.blank_after_short_description else "\n"
    return between.join(parts), {name: item for name, item in described.items() if item}


def _leads(line: str) -> bool:
    """Whether a docstring's first line is a summary."""
    return not (_SECTION.match(line) or _HEADER.match(line) or _FIELD.match(line))


def _named(written: str, args: Collection[str], names: Collection[str]) -> list[str]:
    """The parameters that an entry of docstring_parser is about: `a, b`, `` `a` ``, or `a` of `:param a (str):`."""
    found = [name.strip(" *`") for name in written.split(",")]
    known = [name for name in found if name in names]
    return known or [name for it in args if (name := it.strip(" *`")) in names][:1]


def _fields_last(lines: list[str]) -> list[str]:
    """The lines with paragraphs that follow Sphinx fields put before them: the library adds them to the last field."""
    before: list[str] = []
    fields: list[str] = []
    inside = False
    for number, line in enumerate(lines):
        if _FIELD.match(line):
            inside = True
        elif inside and line[:1].strip() and not lines[number - 1].strip():
            inside = False
        (fields if inside else before).append(line)
    return [*before, "", *fields] if fields else lines


def _argument_sections(lines: list[str], names: Collection[str]) -> tuple[list[str], dict[str, str]]:
    """The lines without the sections of arguments, and the items of these."""
    rest: list[str] = []
    items: dict[str, str] = {}
    number = 0
    while number < len(lines):
        header = _HEADER.match(lines[number])
        below = lines[number + 1].strip() if number + 1 < len(lines) else ""
        marked = header and (header["colon"] or lines[number].strip()[:1] in "*_#")
        if not marked or set(below) == {"-"}:  # numpy's are underlined
            rest.append(lines[number])
            number += 1
            continue
        length, found = _read_items(lines[number + 1 :], lines[number], names)
        items |= found
        number += 1 + length
    return rest, items


def _read_items(lines: list[str], header: str, names: Collection[str]) -> tuple[int, dict[str, str]]:
    """How many lines a section has below its header, and its items by parameter."""
    found: dict[str, str] = {}
    current: list[str] = []
    margin: int | None = None
    """Indentation of the items, once there is one."""
    for number, line in enumerate(lines):
        item = _ITEM.match(line)
        own = _known(item, names) if item else []
        indent = len(line) - len(line.lstrip())
        after_blank = number > 0 and not lines[number - 1].strip()
        outside = indent <= len(header) - len(header.lstrip())
        if outside and not own and line.strip() and (after_blank or _SECTION.match(line) or _FIELD.match(line)):
            return number, found
        if own and (margin is None or indent <= margin):
            margin, current = indent, own
            found |= dict.fromkeys(own, item["text"] if item else "")
        elif item and not outside and (margin is None or indent <= margin):
            current = []  # the description of something that the model doesn't see
        else:
            for name in current:
                found[name] += f"\n{line}"
    return len(lines), found


def _known(item: re.Match[str], names: Collection[str]) -> list[str]:
    written = [name.strip(" *`") for name in item["names"].split(",")]
    return written if all(name in names for name in written) else []
