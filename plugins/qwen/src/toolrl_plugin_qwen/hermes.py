"""The parser `hermes`: one JSON object between <tool_call> and </tool_call> is one call.

    <tool_call>
    {"name": "lookup", "arguments": {"city": "Oslo"}}
    </tool_call>

Method: after an opening tag one JSON value is read, aware of strings, so a closing tag inside a string is data; then
the closing tag is required. Where that fails, reading goes on at the nearest tag, so that no later call is lost. A
string that was never closed may have swallowed a whole call: an opening tag with a JSON object right behind it, inside
what was read as a string, shows it, and then the nearest tag is looked for from the block's start.
"""

from __future__ import annotations

import re
from typing import Any

from toolrl_common.parsing import Block, JsonFault, read_json, reads_a_call
from toolrl_common.parsing.jsonvalue import WHITESPACE, excerpt, near
from toolrl_plugin_qwen.mend import MAX_MENDED, mend_json
from toolrl_plugin_qwen.parser import CLOSE, OPEN, QwenParser, QwenScanner

_TAG = re.compile("</?tool_call>")
_CLOSING = re.compile(WHITESPACE.pattern + CLOSE)
_SWALLOWED = re.compile(r'<tool_call>\s*\{\s*"')


def form(name: str | None = None) -> str:
    """How a call is written, for the model."""
    return f'Write a call as {OPEN}\n{{"name": "{name or "TOOL"}", "arguments": {{"ARGUMENT": VALUE}}}}\n{CLOSE}'


class HermesScanner(QwenScanner):
    """The state machine of a turn."""

    MARKS = re.compile("</?tool_call>|<think>")
    OPENERS = re.compile(OPEN)
    FORM = form

    def read_block(self, start: int, tag: str) -> Block:
        text = self.text
        if tag == CLOSE:
            return self.stray_close(start)
        body = WHITESPACE.match(text, start + len(OPEN)).end()  # type: ignore[union-attr]  # it matches nothing, too
        if text.startswith(CLOSE, body):
            return self.empty(start, body + len(CLOSE))
        if body == len(text) or text.startswith(OPEN, body):
            stopped = body == len(text) and self.stopped_by == CLOSE
            return self.empty(start, body) if stopped else self.unclosed(start, body)
        read = read_json(text, body)
        if not isinstance(read, JsonFault):
            return self._closed(start, read[0], read[1], False)
        if not self.options.repair or read.kind != "invalid_json" or self.mended >= MAX_MENDED:
            return self._broken(start, body, read)
        mended = mend_json(text, body)
        block = self._closed(start, *mended, True) if mended is not None else self._broken(start, body, read)
        self.mended += block.end - start
        return block

    def _closed(self, start: int, value: Any, value_end: int, recovered: bool) -> Block:
        """A value was read; the closing tag has to follow."""
        text = self.text
        closing = _CLOSING.match(text, value_end)
        if closing is not None:
            return self._judge(start, closing.end(), value, recovered)
        after = WHITESPACE.match(text, value_end).end()  # type: ignore[union-attr]
        name = value["name"] if isinstance(value, dict) and isinstance(value.get("name"), str) else None
        tag = _TAG.search(text, value_end)
        if tag is None and self.stopped_by == CLOSE and after == len(text):
            return self._judge(start, len(text), value, recovered)
        if (tag is None and self.stopped_by != CLOSE) or (tag is not None and tag.group() == OPEN):
            return self.unclosed(start, tag.start() if tag else len(text), name)
        end = tag.end() if tag else len(text)
        message = f"After the JSON object came {excerpt(text, after, end)}, where only {CLOSE} may follow. {form(name)}"
        return self.error("extra_data", message, start, end, name=name)

    def _broken(self, start: int, body: int, fault: JsonFault) -> Block:
        """No value could be read: find the nearest tag and say what was wrong."""
        text = self.text
        swallowed = _SWALLOWED.search(text, body, fault.position + 1)
        tag = _TAG.search(text, body if swallowed else fault.resume)
        tag = tag or _TAG.search(text, body)
        if fault.open_string:
            self.open_from(fault.position)
        closed = self.stopped_by == CLOSE if tag is None else tag.group() == CLOSE
        end = len(text) if tag is None else tag.end() if closed else tag.start()
        if fault.kind == "too_deep":
            return self.error("too_deep", f"The call can't be read: {fault.reason}. {form()}", start, end)
        if not closed:
            return self.unclosed(start, end)
        message = f"The call is not valid JSON: {fault.reason}, near {near(text, fault.position, end)}. {form()}"
        return self.error("invalid_json", message, start, end)

    def _judge(self, start: int, end: int, value: Any, recovered: bool) -> Block:
        """A value in both its tags: is it a call?"""
        if not isinstance(value, dict):
            kind = _KINDS.get(type(value), "a number")
            return self.error("not_object", f"A call has to be a JSON object, this is {kind}. {form()}", start, end)
        name, arguments = value.get("name"), value.get("arguments")
        if isinstance(arguments, dict) and isinstance(name, str) and name.strip():
            return self.call(name, arguments, start, end, recovered=recovered)
        if "name" not in value:
            return self.error("missing_name", f'The call has no "name". {form()}', start, end)
        if not isinstance(name, str):
            kind = _KINDS.get(type(name), "a number")
            return self.error("bad_name", f'"name" has to be a string, it is {kind}. {form()}', start, end)
        if not name.strip():
            return self.error("missing_name", f'The call\'s "name" is empty. {form()}', start, end)
        if "arguments" not in value:
            message = f'The call has no "arguments"; write {{}} where there are none. {form(name)}'
            return self.error("missing_arguments", message, start, end, name=name)
        if isinstance(arguments, str) and self.options.repair:
            arguments, recovered = _from_string(arguments), True
        if not isinstance(arguments, dict):
            kind = _KINDS.get(type(arguments), "a number")
            message = f'"arguments" has to be a JSON object, it is {kind}. {form(name)}'
            return self.error("bad_arguments", message, start, end, name=name)
        return self.call(name, arguments, start, end, recovered=recovered)


_KINDS = {str: "a string", list: "a list", dict: "an object", bool: "true or false", type(None): "null"}


def _from_string(text: str) -> Any:
    """The object in a string of JSON; the string itself where there is none."""
    read = read_json(text)
    return text if isinstance(read, JsonFault) or read[1] != len(text) else read[0]


class HermesParser(QwenParser):
    """JSON calls in tags."""

    SCANNER = HermesScanner


def check() -> str:
    """For `toolrl doctor`: read a call."""
    return reads_a_call(HermesParser(), f'{OPEN}\n{{"name": "now", "arguments": {{}}}}\n{CLOSE}')
