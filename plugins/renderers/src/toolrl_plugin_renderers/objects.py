"""Calls that are bare JSON objects, as Llama 3 writes them: `{"name": TOOL, "parameters": {…}}`.

No mark shows where a call begins, so what is in an object decides. One whose `name` is a known tool and that has
`parameters` or `arguments` is a call, wherever it stands: alone, behind words, in a code fence, several in a row. If it
begins its turn or follows `<|python_tag|>` (Meta's mark for a call), it is one for an unknown tool too, which the
executor answers. Any other object is a JSON answer, and stays text. What was meant as a call and can't be read is an
error: broken JSON that names a known tool, code behind `<|python_tag|>`, or one of the other forms that Llama was
taught (`[TOOL(a=1)]`, `<function=TOOL>{…}`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from toolrl.parsing import MAX_ITEMS
from toolrl.types import Span
from toolrl_common.parsing import JsonFault, read_json

MAX_BROKEN = 16
"""Objects of one turn that can't be read, each of which may cost a look at all that follows. What comes after them is
one error if it may hold another call."""

_START = re.compile(r'\{\s*+"')
_ATTEMPT = re.compile(r'\{\s*+"(?:name|type|function|parameters|arguments)"\s*+:')
_NAMED = re.compile(r'"(?:name|function)"\s*+:\s*+"((?:[^"\\\n]|\\.)*+)"')
_ARGUMENTS = re.compile(r'"(?:parameters|arguments)"\s*+:')
_FENCE = re.compile(r"```\w*[ \t]*\n?\s*\Z")
_FENCE_END = re.compile(r"\s*```")
_BETWEEN = re.compile(r"[\s;,\[\]]*\Z")
_BARE = frozenset(("name", "type", "id"))
"""Keys of a call without arguments."""
_NEAR = 2000
"""Characters of a broken object in which its tool's name is looked for."""
_BEFORE = 64


class Found(NamedTuple):
    """One attempt."""

    span: Span
    name: Any = None
    arguments: Any = None
    fault: str = ""
    """The kind of its error; nothing for a call. `invalid_json`: `body` says what is wrong."""
    body: str = ""


def read_objects(text: str, tags: Sequence[Span], names: Collection[str]) -> list[Found]:
    """The attempts in a turn, in order. `tags` are the places of `<|python_tag|>`, `names` the known tools."""
    return _Objects(text, tags, names).read()


class _Objects:
    """One reading of one turn."""

    def __init__(self, text: str, tags: Sequence[Span], names: Collection[str]) -> None:
        self._text, self._tags, self._names = text, tags, names
        self._end = len(text.rstrip())
        self._found: list[Found] = []
        self._broken = 0
        self._from = 0
        """Where the turn, its last tag or its last attempt ended."""
        self._tag: Span | None = None
        """A tag behind which nothing was found yet."""

    def read(self) -> list[Found]:
        at, tagged = 0, False
        tags = iter([*self._tags, (len(self._text), len(self._text))])
        tag = next(tags)
        while True:
            while tag[0] < at:  # it stands in a string of an object that was read
                tag = next(tags)
            if len(self._found) > MAX_ITEMS:
                return self._found
            match = _START.search(self._text, at, tag[0])
            if match is not None:
                at = self._object(match.start(), tagged=tagged)
                continue
            self._end_of_tag(tag[0])
            if tag[0] == len(self._text):
                return self._found or self._other_forms()
            self._tag, tagged, at = tag, True, tag[1]
            self._from, tag = at, next(tags)

    def _end_of_tag(self, end: int) -> None:
        """A tag behind which no call stands is an error."""
        if self._tag is not None:
            body = self._text[self._tag[1] : end].strip()
            self._found.append(Found(_trimmed(self._text, self._tag[0], end), fault="malformed" if body else "empty"))
            self._tag = None

    def _add(self, item: Found) -> int:
        """Keep an attempt; where it ends."""
        if self._tag is not None:
            item, self._tag = item._replace(span=(self._tag[0], item.span[1])), None
        self._found.append(item)
        self._from = item.span[1]
        return item.span[1]

    def _object(self, at: int, *, tagged: bool) -> int:
        """Read the object at `at`; where to go on."""
        text = self._text
        first = at - self._from < _BEFORE and _BETWEEN.match(text, self._from, at) is not None
        read = read_json(text, at)
        if not isinstance(read, JsonFault):
            value, end = read
            item = self._judge(value, (at, end), first=tagged or first, last=end >= self._end)
            return self._add(item._replace(span=self._fenced(item.span))) if item is not None else end
        self._broken += 1
        if self._broken > MAX_BROKEN:
            self._found += self._rest(at)
            return len(text)
        end = self._broken_end(read, at)
        if self._meant(at, end, first=tagged or first):
            return self._add(Found(_trimmed(text, at, end), fault="invalid_json", body=text[at:end]))
        return at + 1

    def _judge(self, value: Any, span: Span, *, first: bool, last: bool) -> Found | None:
        """What an object is; None if it's an answer."""
        if not isinstance(value, Mapping):
            return None
        name = value.get("name")
        given = [key for key in ("parameters", "arguments") if key in value]
        known = isinstance(name, str) and name in self._names
        bare = first and last and not self._names and value.keys() <= _BARE and isinstance(name, str)
        if not (known or (first and given) or bare or self._form_of_others(value)):
            return None
        if "name" not in value:
            return Found(span, fault="missing_name")
        if not given and not (first and last):
            return None
        if len(given) > 1:
            return Found(span, name, fault="bad_arguments")
        if not given and not value.keys() <= _BARE:
            return Found(span, name, fault="missing_arguments")
        return Found(span, name, value[given[0]] if given else {})

    def _form_of_others(self, value: Mapping[str, Any]) -> bool:
        """Whether it calls a known tool in a form that isn't Llama's: `function` in place of `name`, or around it."""
        function = value.get("function")
        name = function.get("name") if isinstance(function, Mapping) else function
        return isinstance(name, str) and name in self._names

    def _meant(self, at: int, end: int, *, first: bool) -> bool:
        """Whether broken JSON was meant as a call."""
        near = self._text[at : min(end, at + _NEAR)]
        named = _NAMED.search(near)
        known = named is not None and named[1] in self._names
        return known or (
            first and _ATTEMPT.match(near) is not None and (named is None or bool(_ARGUMENTS.search(near)))
        )

    def _broken_end(self, fault: JsonFault, at: int) -> int:
        """Where a broken object ends: before what may be the next one, else where the text does."""
        following = _ATTEMPT.search(self._text, max(fault.resume, at + 1))
        return following.start() if following else len(self._text)

    def _rest(self, at: int) -> list[Found]:
        """An error for all that is left if it may hold a call."""
        text = self._text
        while match := _ATTEMPT.search(text, at):
            if self._meant(match.start(), len(text), first=False):
                return [Found(_trimmed(text, match.start(), len(text)), fault="malformed")]
            at = match.end()
        return []

    def _fenced(self, span: Span) -> Span:
        """The span with a code fence that stands directly around it."""
        before = _FENCE.search(self._text[max(self._from, span[0] - _BEFORE) : span[0]])
        after = _FENCE_END.match(self._text, span[1])
        if before is None or after is None:
            return span
        return span[0] - len(before.group()), after.end()

    def _other_forms(self) -> list[Found]:
        """Calls of known tools as `[TOOL(a=1)]` alone in a turn, or as `<function=TOOL>{…}`."""
        text = self._text
        if not self._names:
            return []
        known = "|".join(map(re.escape, self._names))
        match = re.search(rf"<function=(?:{known})>", text)
        if match is None and text.rstrip().endswith((")", ")]")):
            match = re.match(rf"\s*(?:\[\s*(?:{known})\s*\(|(?:{known})\((?:\)|\s*\w+\s*=))", text)
        return [Found(_trimmed(text, match.start(), len(text)), fault="malformed")] if match else []


def _trimmed(text: str, start: int, end: int) -> Span:
    """A span without white space at its ends."""
    piece = text[start:end]
    return end - len(piece.lstrip()) if piece.strip() else start, start + len(piece.rstrip())


def between(text: str, spans: Sequence[Span]) -> list[Span]:
    """Stretches before, between and behind attempts that only set them apart: `;`, or the brackets of a list."""
    edges = [0, *(place for span in spans for place in span), len(text)]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    return [(start, end) for start, end in gaps if _BETWEEN.match(text, start, end)] if spans else []
