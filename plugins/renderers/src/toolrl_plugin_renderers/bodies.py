"""What stands inside a call whose values are written bare: its name, its keys and the exact text of each value.

The library finds where calls begin and end. It also takes the first closing mark that comes, passes over what lies
between arguments, and strips values; so a call that lost a mark would run with another's arguments. Here every mark has
to stand where the family's template writes it, else the call is an error. The format has no escapes: where a value
holds what may be its own call's next mark, nobody can tell, and the model is asked to write the call again.

All of it is linear in the text's length: each search goes on where the one before it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolrl.types import Span, ToolSpec
from toolrl_plugin_renderers.families import Pairs, Tags
from toolrl_plugin_renderers.marks import Mark

_KEY = re.compile(r"[^<>\n]+\Z")
_SPACE = re.compile(r"\s*")
_LINE_START = re.compile(r"(?:\A|\n)[ \t]*\Z")
_INDENT = 80
"""Characters before a tag that are looked at to tell whether a line begins with it."""


@dataclass(slots=True)
class Body:
    """One call as it is written, or why it can't be read."""

    span: Span
    name: str = ""
    values: dict[str, str] = field(default_factory=dict)
    json_keys: set[str] = field(default_factory=set)
    """Keys whose values the call itself says to be JSON."""
    text_keys: set[str] = field(default_factory=set)
    """Keys whose values it says to be text."""
    kind: str = ""
    """`malformed` or `empty`; nothing for a whole call."""
    why: str = ""
    headless: bool = False
    """Arguments or an end stand in front of it or behind it, outside of any function."""
    arguments_behind: bool = False
    """Arguments stand behind it, which may be those of the next function."""
    closed: bool = False
    """Its own closing tag is there."""
    doubtful: bool = False
    """It or the function before it isn't closed: if arguments elsewhere in the turn lack their name, it may be here."""
    holds_tag: bool = False
    """A value holds a tag that was read as text. If another call of the turn lacks one, it may be that."""

    def fail(self, why: str) -> None:
        self.kind, self.why = self.kind or "malformed", self.why or why


def read_pairs(form: Pairs, text: str, span: Span, marks: Sequence[Mark]) -> Body:
    """The call in `span`. `marks` are those within it, its opening and closing marks first and last."""
    body = Body(span)
    opened, *parts, closed = marks
    if not text[opened.end : closed.start].strip():
        body.kind = "empty"
        return body
    body.name = text[opened.end : (parts or [closed])[0].start].strip()
    if parts and form.separator and text[parts[0].start : parts[0].end] == form.separator:
        opened = parts.pop(0)
        if text[opened.end : (parts or [closed])[0].start].strip():
            body.fail(f"text stands behind {form.separator}")
    wanted = (*form.key, *form.value)
    for number in range(0, len(parts), 4):
        group = parts[number : number + 4]
        if [text[mark.start : mark.end] for mark in group] != list(wanted):
            body.fail(f"expected {' then '.join(wanted)}")
            return body
        key_open, key_close, value_open, value_close = group
        after = parts[number + 4].start if number + 4 < len(parts) else closed.start
        if text[key_close.end : value_open.start].strip() or text[value_close.end : after].strip():
            body.fail("text stands between its arguments")
        key = text[key_open.end : key_close.start].strip()
        _keep(body, key, text[value_open.end : value_close.start])
    return body


def _keep(body: Body, key: str, value: str) -> None:
    if not key or not _KEY.match(key):
        body.fail("an argument has no name that can be read")
    elif key in body.values:
        body.fail(f"the argument {key} is given twice")
    else:
        body.values[key] = value


class TagReader:
    """Reads functions between the marks around them."""

    def __init__(self, form: Tags) -> None:
        self._form = form
        self._function = re.compile(form.function)
        self._parameter = re.compile(form.parameter)
        self._inside = re.compile(
            f"(?P<function>{form.function})|(?P<parameter>{form.parameter})|(?P<end>{re.escape(form.parameter_end)})"
        )

    def headless(self, text: str, taken: bytearray) -> list[int]:
        """Where arguments are opened outside of what is `taken`."""
        return [match.start() for match in self._parameter.finditer(text) if not taken[match.start()]]

    def opens_argument(self, text: str, span: Span) -> bool:
        return self._parameter.search(text, *span) is not None

    def read(self, text: str, span: Span, inner: Span, tools: Sequence[ToolSpec]) -> list[Body]:
        """The functions in text[inner], in order. `span` is that with the marks around it."""
        return _Reading(self, text, inner[1], {tool.name: tool.parameters for tool in tools}).run(span, inner[0])


class _Reading:
    """One reading of one text."""

    def __init__(self, reader: TagReader, text: str, stop: int, schemas: Mapping[str, Any]) -> None:
        self._form = reader._form
        self._function, self._parameter, self._inside = reader._function, reader._parameter, reader._inside
        self._text, self._stop, self._schemas = text, stop, schemas

    def run(self, span: Span, start: int) -> list[Body]:
        found: list[Body] = []
        at = self._space(start)
        while at < self._stop:
            body = Body((at, self._stop))
            at = self._space(self._one(body, at))
            body.span = (body.span[0], at)
            body.doubtful = not body.closed or bool(found and not found[-1].closed)
            found.append(body)
        if not found:
            return [Body(span, kind="empty")]
        if len(found) > 1 and not found[-1].closed and not found[-1].values:
            found[-1].fail(f"expected an argument or {self._form.function_end}")  # a name that may be another call's
        for body in found:
            start, end = body.span
            body.span = (start, start + len(self._text[start:end].rstrip()))
        if self._form.wrapped:
            found[0].span = (span[0], found[0].span[1])
            found[-1].span = (found[-1].span[0], span[1])
        return found

    def _one(self, body: Body, at: int) -> int:
        """Read the function that should begin at `at` into `body`; where the next one begins."""
        head = self._function.match(self._text, at, self._stop)
        if head is None:
            # Arguments may have lost their place in front of the function: it is not trusted with those it has.
            body.fail("text stands before its function")
            body.headless = True
            begin = self._next_function(at)
            head = self._function.match(self._text, begin, self._stop)
            if head is None:
                return self._stop
        body.name, at = head[1].strip(), head.end()
        while True:
            at = self._space(at)
            parameter = self._parameter.match(self._text, at, self._stop)
            again = None if body.values else self._function.match(self._text, at, self._stop)
            if parameter is not None:
                at, whole = self._value(body, parameter)
                if not whole:
                    return at
            elif again is not None:
                # Two names in a row: which of them the arguments belong to can't be told.
                body.fail("one function begins in the head of another")
                at = again.end()
            else:
                return self._end(body, at)

    def _end(self, body: Body, at: int) -> int:
        """After the last argument."""
        closing = self._form.function_end
        if self._text.startswith(closing, at) and at + len(closing) <= self._stop:
            at += len(closing)
            after = self._space(at)
            body.closed = True
            if after >= self._stop or self._function.match(self._text, after, self._stop):
                return at
            body.fail("text stands behind its function")
            body.headless = True
            body.arguments_behind = self._parameter.search(self._text, at, self._next_function(at)) is not None
        elif at >= self._stop and self._form.wrapped:
            return at
        else:
            body.fail(f"expected an argument or {closing}")
        return self._next_function(at)

    def _value(self, body: Body, opened: re.Match[str]) -> tuple[int, bool]:
        """Read an argument; where to go on, and whether it is whole."""
        start = at = opened.end()
        known = self._schemas.get(body.name)
        while True:
            mark = self._inside.search(self._text, at, self._stop)
            if mark is None:
                body.fail(f"an argument is not closed with {self._form.parameter_end}")
                return self._stop, False
            if mark.lastgroup == "end":
                break
            if self._structural(mark, start, known):
                body.fail(f"{mark.group()} stands inside an argument, as if {self._form.parameter_end} were missing")
                return (mark.start() if mark["function"] else self._next_function(mark.end())), False
            at = mark.end()
        key = opened[1].strip()
        value = self._text[start : mark.start()]
        body.holds_tag |= at > start or self._form.function_end in value
        _keep(body, key, re.sub(r"\A\r?\n|\r?\n\Z", "", value) if self._form.newline else value)
        if opened.re.groups > 1:
            (body.text_keys if opened[2] == "true" else body.json_keys).add(key)
        return mark.end(), True

    def _structural(self, mark: re.Match[str], start: int, schema: Any) -> bool:
        """Whether a tag inside a value may be the call's own: its name is known, or it begins the value or a line."""
        names: Iterable[str] = self._schemas
        if mark["parameter"]:
            properties = schema.get("properties") if isinstance(schema, Mapping) else None
            name = self._parameter.match(mark.group())[1]  # type: ignore[index]  # it matched within `_inside`
            names = properties if isinstance(properties, Mapping) else (name,)
        else:
            name = self._function.match(mark.group())[1]  # type: ignore[index]  # as above
        first = mark.start()
        return (
            first == start
            or not self._schemas
            or name.strip() in names
            or bool(_LINE_START.search(self._text[max(start, first - _INDENT) : first]))
        )

    def _next_function(self, at: int) -> int:
        found = self._function.search(self._text, at, self._stop)
        return found.start() if found else self._stop

    def _space(self, at: int) -> int:
        return min(_SPACE.match(self._text, at).end(), self._stop)  # type: ignore[union-attr]  # it matches nothing, too
