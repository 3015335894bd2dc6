"""The parser `qwen3_coder`: a function tag with parameter tags, whose values are plain text.

    <tool_call>
    <function=edit>
    <parameter=path>
    a.py
    </parameter>
    </function>
    </tool_call>

The format has no escapes, so a value ends only where the structure shows it (`toolrl_plugin_qwen.values`). One newline
is taken off on each side of a value, indentation stays; then the tool's schema decides what the text means
(`toolrl_common.parsing.coercion`). The outer tags may be missing, both or only the opening one, as the models sometimes
leave them out, and so may the function's closing tag if the outer one is there; they may also hold several functions,
each of which is a call. If a block can't be read, reading goes on at the nearest outer tag.
"""

from __future__ import annotations

import re
from functools import cached_property
from typing import Any

from toolrl_common.parsing import Block, reads_a_call
from toolrl_common.parsing.coercion import coerce, declared
from toolrl_common.parsing.jsonvalue import encodable, excerpt
from toolrl_plugin_qwen.mend import MAX_MENDED, mend_json
from toolrl_plugin_qwen.parser import CLOSE, OPEN, QwenParser, QwenScanner
from toolrl_plugin_qwen.values import Value, ValueEnds

FUNCTION_CLOSE, PARAMETER_CLOSE = "</function>", "</parameter>"

_SPACE = re.compile(r"\s*")
_TAG = re.compile("</?tool_call>")
_NEXT = re.compile("</?tool_call>|<function=")
_FUNCTION = re.compile(r"<function=([^<>\n]*)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]*)>")
_HALF = "half of a surrogate pair, which is no character"


def form(name: str | None = None) -> str:
    """How a call is written, for the model."""
    return (
        f"Write a call as {OPEN}\n<function={name or 'TOOL'}>\n<parameter=ARGUMENT>\nVALUE\n{PARAMETER_CLOSE}\n"
        f"{FUNCTION_CLOSE}\n{CLOSE}"
    )


class Qwen3CoderScanner(QwenScanner):
    """The state machine of a turn."""

    MARKS = re.compile("</?tool_call>|<function=|<think>")
    OPENERS = re.compile("<tool_call>|<function=")
    FORM = form
    _next = -1
    """Where a function begins behind another one, in the same outer tags."""

    @cached_property
    def _ends(self) -> ValueEnds:
        return ValueEnds()

    @cached_property
    def _schemas(self) -> dict[str, Any]:
        return {tool.name: tool.parameters for tool in self.tools}

    def read_block(self, start: int, tag: str) -> Block:
        text = self.text
        if tag == CLOSE:
            return self.stray_close(start)
        if tag != OPEN:
            return self._function(start, start, wrapped=start == self._next)
        body = self._space(start + len(OPEN))
        if text.startswith("<function=", body):
            return self._function(start, body, wrapped=True)
        stopped = body == len(text) and self.stopped_by == CLOSE
        if text.startswith(CLOSE, body) or stopped:
            return self.empty(start, min(body + len(CLOSE), len(text)))
        return self._malformed(start, body, "expected <function=TOOL>")

    def _function(self, start: int, at: int, *, wrapped: bool) -> Block:
        """A function tag at `at`; `wrapped`: the outer tag stands before it."""
        head = _FUNCTION.match(self.text, at)
        if head is None:
            return self._malformed(start, at, "expected <function=TOOL>", wrapped=wrapped, skip=1)
        at, name, values = head.end(), head[1].strip(), {}
        while True:
            at = self._space(at)
            if not self.text.startswith("<parameter=", at):
                return self._function_end(start, at, name, values, wrapped=wrapped)
            parameter = _PARAMETER.match(self.text, at)
            if parameter is None or not parameter[1].strip():
                return self._malformed(start, at, "expected <parameter=ARGUMENT>", name, wrapped=wrapped)
            value = self._ends.find(self.text, parameter.end())
            if not value.closed:
                return self._open_value(start, value, name)
            values[parameter[1].strip()] = self.text[parameter.end() : value.end]
            at = value.resume

    def _function_end(self, start: int, at: int, name: str, values: dict[str, str], *, wrapped: bool) -> Block:
        """After the last parameter: the closing tags, of which the inner one may be missing."""
        text = self.text
        closed = text.startswith(FUNCTION_CLOSE, at)
        if closed:
            at += len(FUNCTION_CLOSE)
            if not wrapped:
                closing = self._space(at)  # the outer closing tag may be there without the opening one
                end = closing + len(CLOSE) if text.startswith(CLOSE, closing) else at
                return self._judge(start, end, name, values)
            at = self._space(at)
            if text.startswith("<function=", at):
                self._next = at
                return self._judge(start, at, name, values)
        if wrapped and text.startswith(CLOSE, at):
            return self._judge(start, at + len(CLOSE), name, values)
        if at == len(text) and self.stopped_by == (CLOSE if wrapped else FUNCTION_CLOSE):
            return self._judge(start, at, name, values)
        expected = CLOSE if closed else f"<parameter=ARGUMENT> or {FUNCTION_CLOSE}"
        kind = "extra_data" if closed else "malformed"
        return self._malformed(start, at, f"expected {expected}", name, wrapped=wrapped, kind=kind)

    def _open_value(self, start: int, value: Value, name: str) -> Block:
        self.open_from(start)  # the model may be quoting a call
        if value.end == value.resume:
            return self.unclosed(start, value.end, name)
        message = f"The call can't be read: a parameter was not closed with {PARAMETER_CLOSE}. {form(name)}"
        return self.error("malformed", message, start, value.resume, name=name or None)

    def _malformed(
        self,
        start: int,
        at: int,
        reason: str,
        name: str | None = None,
        *,
        wrapped: bool = True,
        kind: str = "malformed",
        skip: int = 0,
    ) -> Block:
        """A block that can't be read from `at` on. It ends at the nearest outer tag, or at the next call;
        `skip` characters are not looked at for it."""
        tag = (_TAG if wrapped else _NEXT).search(self.text, at + skip)
        stopped = tag is None and self.stopped_by == CLOSE
        if not stopped and (tag is None or tag.group() != CLOSE):
            return self.unclosed(start, tag.start() if tag else len(self.text), name)
        end = tag.end() if tag else len(self.text)
        message = f"The call can't be read: {reason}, got {excerpt(self.text, at, end)}. {form(name)}"
        return self.error(kind, message, start, end, name=name or None)

    def _judge(self, start: int, end: int, name: str, values: dict[str, str]) -> Block:
        if not name:
            return self.error("missing_name", f"The function tag has no name. {form()}", start, end)
        if not encodable(self.text[start:end]):
            if not encodable(name):
                return self.error("bad_name", f"The function's name holds {_HALF}. {form()}", start, end)
            return self.error("bad_arguments", f"A parameter holds {_HALF}. {form(name)}", start, end, name=name)
        schema: Any = self._schemas.get(name) or {}
        recovered = False
        arguments: dict[str, Any] = {}
        for key, text in values.items():
            text = _trimmed(text)
            repair = self.options.repair and self.mended < MAX_MENDED and text.lstrip()[:1] in ("{", "[")
            self.mended += len(text) if repair else 0
            value, mended = coerce(text, declared(schema, key), schema, mend=mend_json if repair else None)
            arguments[key] = value
            recovered = recovered or mended
        return self.call(name, arguments, start, end, recovered=recovered)

    def _space(self, at: int) -> int:
        """The index after whitespace."""
        return _SPACE.match(self.text, at).end()  # type: ignore[union-attr]  # it matches nothing, too


def _trimmed(text: str) -> str:
    """A value without the one newline on each side that the format puts there."""
    return re.sub(r"\A\r?\n|\r?\n\Z", "", text)


class Qwen3CoderParser(QwenParser):
    """Function and parameter tags. Parameters of unknown tools stay text."""

    SCANNER = Qwen3CoderScanner


def check() -> str:
    """For `toolrl doctor`: read a call."""
    return reads_a_call(Qwen3CoderParser(), f"{OPEN}\n<function=now>\n{FUNCTION_CLOSE}\n{CLOSE}")
