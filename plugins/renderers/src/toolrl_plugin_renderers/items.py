"""What the library read as a call, as toolrl's calls and errors.

The library marks good and bad calls by a status. Where it finds that a value is no JSON although the call's form
is right (formats that write values bare, whose schema allows no string), the call stands, and the schema check of the
executor answers it; so does one for an unknown tool. What the library lets through and toolrl can't run is an error: a
name that is no text, arguments that are no object, numbers that aren't finite, values nested too deeply, an argument
that isn't closed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.types import CallError, Span, ToolCall, ToolSpec
from toolrl_common.parsing import MAX_DEPTH, JsonFault, read_json
from toolrl_plugin_renderers.families import Family

_SAID = {
    "unclosed": "The call was not closed, so it was not run.",
    "empty": "The call is empty.",
    "invalid_json": "The call is not valid JSON",
    "missing_name": "The call names no tool.",
    "bad_name": "The tool's name can't be read.",
    "not_object": "A call has to be a JSON object.",
    "bad_arguments": "The arguments have to be an object of finite numbers and well-formed text.",
    "too_deep": f"The arguments are nested more than {MAX_DEPTH} levels deep.",
    "malformed": "The call can't be read.",
    "stray_close": "This closes no call: none was opened before it.",
}
_WORDS = {"True": True, "False": False, "None": None}
_NAME = re.compile(r"[^\s<>]{1,256}\Z")


class Items:
    """Makes items for one family; `form` shows how it writes a call."""

    def __init__(self, family: Family, form: str) -> None:
        self._form = form
        self._python_words = family.python_words
        self._opens, pattern = family.argument
        self._argument = re.compile(pattern, re.DOTALL) if pattern else None

    def error(self, kind: str, text: str, span: Span, *, name: str | None = None, why: str = "") -> CallError:
        """An error item. `why` continues the kind's sentence."""
        said = f"{_SAID[kind]}{f': {why}.' if why else '.' if kind == 'invalid_json' else ''}"
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
        if self._skipped_argument(text[span[0] : span[1]]):
            return self.error("malformed", text, span, name=readable, why="")
        values = dict(arguments or {})
        if self._python_words:
            schema = next((tool.parameters for tool in tools if tool.name == readable), {})
            values = {key: _word(value, schema, key) for key, value in values.items()}
        return ToolCall(readable, values, span=span, raw=text[span[0] : span[1]])

    def no_json(self, body: str, text: str, span: Span, name: str | None = None) -> CallError:
        """An error for what should be JSON and isn't."""
        if not body.strip():
            return self.error("empty", text, span, name=name)
        read = read_json(body.strip())
        if isinstance(read, JsonFault):
            return self.error(read.kind, text, span, name=name, why=read.reason if read.kind == "invalid_json" else "")
        return self.error("invalid_json", text, span, name=name)

    def _skipped_argument(self, raw: str) -> bool:
        """Whether an argument is opened that the library's own pattern doesn't find whole, and passes over."""
        return self._argument is not None and self._opens in self._argument.sub("", raw)


def _word(value: Any, schema: Mapping[str, Any], key: str) -> Any:
    """A value that the family wrote as a word of Python's, where the schema asks for what it means and for no text."""
    if not isinstance(value, str) or value not in _WORDS:
        return value
    properties = schema.get("properties")
    field = properties.get(key) if isinstance(properties, Mapping) else None
    kinds = field.get("type") if isinstance(field, Mapping) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    wanted = "null" if value == "None" else "boolean"
    return _WORDS[value] if wanted in kinds and "string" not in kinds else value


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
