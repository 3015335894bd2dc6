"""What the library read as a call, as toolrl's calls and errors.

The library marks good and bad calls by a status. A call for an unknown tool stands, and so does a bare value that fits
no schema: the executor answers them. What the library lets through and toolrl can't run is an error: a name that is no
text, arguments that are no object or aren't there, numbers that aren't finite, values nested too deeply. Calls with
bare values are read anew (`bodies.py`), their values by the tool's schema.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from toolrl.parsing import MAX_ITEMS
from toolrl.types import CallError, Span, ToolCall, ToolSpec
from toolrl_common.parsing import MAX_DEPTH, JsonFault, read_json
from toolrl_common.parsing.coercion import allowed_types, coerce, declared
from toolrl_plugin_renderers.bodies import Body, TagReader, read_pairs
from toolrl_plugin_renderers.families import Family, Pairs, Tags
from toolrl_plugin_renderers.marks import Mark, covered, inside
from toolrl_plugin_renderers.objects import read_objects

_SAID = {
    "unclosed": "The call was not closed, so it was not run.",
    "empty": "The call is empty.",
    "invalid_json": "The call is not valid JSON",
    "missing_name": "The call names no tool.",
    "missing_arguments": "The call has no arguments; write {} if there are none.",
    "bad_name": "The tool's name can't be read.",
    "not_object": "A call has to be a JSON object.",
    "bad_arguments": "The arguments have to be an object of finite numbers and well-formed text.",
    "too_deep": f"The arguments are nested more than {MAX_DEPTH} levels deep.",
    "malformed": "The call can't be read.",
    "stray_close": "This closes no call: none was opened before it.",
}
_BETWEEN = 64
"""Characters of white space at most between an object and its closing mark."""
_NAME = re.compile(r"[^\s<>]{1,256}\Z")


class Items:
    """Makes items for one family; `form` shows how it writes a call."""

    def __init__(self, family: Family, form: str) -> None:
        self._form = form
        self._family = family
        self._tags = TagReader(family.arguments) if isinstance(family.arguments, Tags) else None
        self._framed = self._tags is not None and (family.arguments.wrapped or not family.opens)
        """Marks stand around functions, which aren't functions' own."""
        self._astray = _astray(family)

    def error(self, kind: str, text: str, span: Span, *, name: str | None = None, why: str = "") -> CallError:
        """An error item. `why` continues the kind's sentence."""
        said = f"{_SAID[kind].removesuffix('.')}{f': {why}' if why else ''}."
        form = self._form.replace("TOOL", name) if name else self._form
        return CallError(kind, f"{said} Write a call as\n{form}", name=name, span=span, raw=text[span[0] : span[1]])

    def item(
        self, attempt: Any, text: str, span: Span, tools: Sequence[ToolSpec], *, cut_off: bool
    ) -> ToolCall | CallError:
        """One attempt of the library's (`ParsedToolCall`). `cut_off`: generation ended inside it."""
        status, name, arguments = str(attempt.status), attempt.name, attempt.arguments
        raw = str(attempt.raw or "")
        readable = name.strip() if isinstance(name, str) and _NAME.match(name.strip()) else None
        if status == "unclosed_block" or (cut_off and status not in ("ok", "unknown_tool")):
            return self.error("unclosed", text, span, name=readable)
        if status == "malformed_structure":
            return self.error("malformed" if raw.strip() else "empty", text, span, name=readable)
        if status == "invalid_json" and not isinstance(arguments, dict):
            return self.no_json(arguments if isinstance(arguments, str) else raw, text, span, readable)
        if status == "missing_name" or name is None:
            return self.error(_nameless(raw), text, span)
        if readable is None:
            return self.error("bad_name" if isinstance(name, str) and name.strip() else "missing_name", text, span)
        fault = _argument_fault({} if arguments is None else arguments)
        if fault is not None:
            return self.error(fault, text, span, name=readable)
        fault = self._unsaid(arguments or {}, raw)
        if fault is not None:
            return self.error(fault, text, span, name=readable)
        return ToolCall(readable, dict(arguments or {}), span=span, raw=text[span[0] : span[1]])

    def objects(
        self, text: str, tags: Sequence[Span], tools: Sequence[ToolSpec], *, cut_off: bool
    ) -> list[ToolCall | CallError]:
        """The calls of a turn of a family that writes bare objects."""
        items: list[ToolCall | CallError] = []
        for found in read_objects(text, tags, {tool.name for tool in tools}):
            span, name = found.span, found.name
            readable = name.strip() if isinstance(name, str) and _NAME.match(name.strip()) else None
            fault = found.fault or ("" if readable else "bad_name" if isinstance(name, str) else "missing_name")
            fault = fault or _argument_fault(found.arguments) or ""
            if fault in ("invalid_json", "malformed") and cut_off and span[1] >= len(text.rstrip()):
                items.append(self.error("unclosed", text, span, name=readable))
            elif fault == "invalid_json":
                items.append(self.no_json(found.body, text, span, readable))
            elif fault or readable is None:
                items.append(self.error(fault, text, span, name=readable))
            else:
                items.append(ToolCall(readable, found.arguments, span=span, raw=text[slice(*span)]))
        return items

    def unmarked(
        self, text: str, pieces: Sequence[Span], items: Sequence[ToolCall | CallError], tools: Sequence[ToolSpec]
    ) -> list[CallError]:
        """Errors for JSON objects in a turn's content that call a known tool: their marks are missing. One whose
        closing mark is there has its error among `items`."""
        names = {tool.name for tool in tools}
        told = {item.span[0] for item in items if isinstance(item, CallError)}
        found: list[CallError] = []
        for start, end in pieces:
            if "{" not in text[start:end] or len(found) > MAX_ITEMS:
                continue
            for first, last in (item.span for item in read_objects(text[start:end], (), names)):
                span = (start + first, start + last)
                name = next((name for name in names if f'"{name}"' in text[slice(*span)]), None)
                after = text[span[1] : span[1] + _BETWEEN]
                if name is not None and span[1] + len(after) - len(after.lstrip()) not in told:
                    why = "it stands outside of a call's marks"
                    found.append(self.error("malformed", text, span, name=name, why=why))
        return found

    def bare(
        self,
        attempts: Sequence[tuple[Any, Span]],
        text: str,
        marks: Sequence[Mark],
        tools: Sequence[ToolSpec],
        cut: int,
    ) -> list[ToolCall | CallError]:
        """The calls of a turn whose values are written bare. `marks` are the turn's; what ends behind `cut` was cut
        off."""
        bodies: list[Body] = []
        for attempt, span in attempts:
            if str(attempt.status) == "unclosed_block":
                bodies.append(Body(span, kind="unclosed"))
                continue
            bodies += self._bodies(text, span, inside(marks, span), tools)
            self._stray(bodies[-1], text, span[1], marks)
        self._doubt(bodies, text, [span for _, span in attempts])
        return [self._body(body, text, tools, cut_off=body.span[1] >= cut) for body in bodies]

    def whole(self, attempt: Any, text: str, span: Span, marks: Sequence[Mark], tools: Sequence[ToolSpec]) -> bool:
        """Whether an attempt can be read as it stands."""
        if self._family.arguments is None:
            return str(attempt.status) in ("ok", "unknown_tool")
        if str(attempt.status) == "unclosed_block":
            return False
        return all(
            not body.kind and _NAME.match(body.name) for body in self._bodies(text, span, inside(marks, span), tools)
        )

    def _stray(self, body: Body, text: str, end: int, marks: Sequence[Mark]) -> None:
        """Arguments behind a call's end are its own, or another one's: it doesn't run with those that it has."""
        if self._astray is None or body.kind:
            return
        limit = next((mark.start for mark in inside(marks, (end, len(text))) if mark.kind != "part"), len(text))
        stray = self._astray.search(text, end, limit)
        if stray is None:
            return
        body.fail("arguments stand behind its end")
        body.headless = True
        following = inside(marks, (stray.end(), len(text)))
        mark = next((mark for mark in following if mark.kind not in ("part", "think", "unthink")), None)
        end = len(text) if mark is None else mark.end if mark.kind == "close" else mark.start
        body.arguments_behind = self._tags is not None and self._tags.opens_argument(text, (stray.start(), end))
        body.span = (body.span[0], body.span[0] + len(text[body.span[0] : end].rstrip()))

    def _doubt(self, bodies: Sequence[Body], text: str, spans: Sequence[Span]) -> None:
        """Fail calls that may hold what another call of the turn lacks."""
        if self._tags is None:
            return
        outside: list[int] = []
        if not self._framed or any(body.doubtful for body in bodies):
            outside = self._tags.headless(text, covered(text, spans))
        if not self._framed:
            _claim(bodies, outside)
        for body, following in pairwise(bodies):
            if body.arguments_behind:
                following.fail("arguments stand in front of its function")
        headless = outside or any(body.headless for body in bodies)
        for body in bodies if headless else ():
            if body.doubtful:
                body.fail("other arguments of this turn lack their function")
        if not all(body.closed and not body.kind for body in bodies):
            for body in bodies:
                if body.holds_tag:
                    body.fail("an argument holds a tag, and another call of this turn lacks one")

    def _bodies(self, text: str, span: Span, within: Sequence[Mark], tools: Sequence[ToolSpec]) -> list[Body]:
        form = self._family.arguments
        sections = ("unsection",) if within[0].kind == "section" else ("section", "unsection")
        frame = [mark for mark in within[1:-1] if mark.kind in sections]
        if isinstance(form, Pairs):
            own = [within[0], *(mark for mark in within if mark.kind == "part"), within[-1]]
            bodies = [read_pairs(form, text, span, own)]
        else:
            assert isinstance(form, Tags)
            assert self._tags is not None
            inner = (within[0].end, within[-1].start) if self._framed else span
            bodies = self._tags.read(text, span, inner, tools)
        for mark in frame:
            body = next(body for body in reversed(bodies) if body is bodies[0] or body.span[0] <= mark.start)
            body.fail(f"{text[mark.start : mark.end]} stands inside of it")
        return bodies

    def _body(self, body: Body, text: str, tools: Sequence[ToolSpec], *, cut_off: bool) -> ToolCall | CallError:
        """A call that was read anew, its values by the tool's schema."""
        name = body.name if _NAME.match(body.name) else None
        if body.kind:
            return self.error("unclosed" if cut_off else body.kind, text, body.span, name=name, why=body.why)
        if name is None:
            return self.error("bad_name" if body.name else "missing_name", text, body.span)
        schema: Mapping[str, Any] = next((tool.parameters for tool in tools if tool.name == name), {})
        values = {key: _value(body, key, schema) for key in body.values}
        fault = _argument_fault(values)
        if fault is not None:
            return self.error(fault, text, body.span, name=name)
        return ToolCall(name, values, span=body.span, raw=text[slice(*body.span)])

    def no_json(self, body: str, text: str, span: Span, name: str | None = None) -> CallError:
        """An error for what should be JSON and isn't."""
        if not body.strip():
            return self.error("empty", text, span, name=name)
        read = read_json(body.strip())
        if isinstance(read, JsonFault):
            return self.error(read.kind, text, span, name=name, why=read.reason if read.kind == "invalid_json" else "")
        return self.error("invalid_json", text, span, name=name)

    def _unsaid(self, arguments: Mapping[str, Any], raw: str) -> str | None:
        """Why arguments that the library gives aren't those that the call says; None if they are."""
        if self._family.quote and self._family.quote in json.dumps(arguments, ensure_ascii=False).replace('\\"', '"'):
            return "malformed"
        if arguments:
            return None
        # The library takes it for no arguments if it finds none: without any object, or with one by another name.
        said = read_json(raw.strip())
        if isinstance(said, tuple) and isinstance(said[0], dict):
            dropped = [key for key, value in said[0].items() if isinstance(value, dict | list) and value]
            return "missing_arguments" if "name" in said[0] and dropped else None
        return None if "{" in raw else "missing_arguments"


_JSON_TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
"""What a schema may ask for; of other words (`float`) the library makes nothing either."""


def _claim(bodies: Sequence[Body], outside: Sequence[int]) -> None:
    """Fail the calls behind arguments that begin `outside` of any: they are their own, or another one's."""
    end = 0
    for body in bodies:
        first = bisect_left(outside, end)
        if first < len(outside) and outside[first] < body.span[0]:
            body.fail("arguments stand in front of its function")
            body.span = (outside[first], body.span[1])
        end = body.span[1]


def _astray(family: Family) -> re.Pattern[str] | None:
    """The marks of arguments, which behind a call's end are astray."""
    form = family.arguments
    if form is None:
        return None
    if isinstance(form, Pairs):
        marks = [re.escape(mark) for mark in (*form.key, *form.value, form.separator) if mark]
    else:
        marks = [form.parameter, re.escape(form.parameter_end), re.escape(form.function_end)]
    return re.compile("|".join(marks))


def _value(body: Body, key: str, schema: Mapping[str, Any]) -> Any:
    """What a bare value means."""
    text = body.values[key]
    if key in body.text_keys:
        return text
    field = declared(schema, key)
    types = allowed_types(field, schema)
    if types and types <= _JSON_TYPES and key not in body.json_keys:
        return coerce(text, field, schema)[0]
    whole = text.strip(" \t\r\n")
    read = read_json(whole)
    return read[0] if isinstance(read, tuple) and read[1] == len(whole) else text


def _nameless(raw: str) -> str:
    if not raw.strip():
        return "empty"
    return "not_object" if raw.strip()[:1] in '["-0123456789tfn' and not _NAME.match(raw.strip()) else "missing_name"


def _argument_fault(arguments: Any) -> str | None:
    """Why arguments can't be run; None where they can."""
    if not isinstance(arguments, dict) or not all(isinstance(key, str) for key in arguments):
        return "bad_arguments"
    try:
        text = json.dumps(arguments, allow_nan=False, ensure_ascii=False)
        text.encode()
    except RecursionError:
        return "too_deep"
    except (ValueError, TypeError):
        return "bad_arguments"
    read = read_json(text)
    return read.kind if isinstance(read, JsonFault) else None
