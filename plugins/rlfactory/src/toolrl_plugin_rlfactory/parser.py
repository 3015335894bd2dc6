"""The parser `rlfactory`: RLFactory's Qwen managers, or a manager of the user's own.

An answer beats calls: the turn is the last. A manager that overrides `parse_response`, `parse_end_flag` or
`parse_tools` reads the turn itself; what it raises becomes an error that the model reads. It gives no places of
calls in the text, so the first call's span is the whole turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from toolrl.parsing import tool_messages
from toolrl.protocols import BuildContext, ToolParser
from toolrl.types import CallError, CallRecord, Message, ParsedTurn, ToolCall, ToolSpec
from toolrl_plugin_rlfactory import reading
from toolrl_plugin_rlfactory.envs import shared_env
from toolrl_plugin_rlfactory.managers import failed, overrides, succeeded
from toolrl_plugin_rlfactory.options import EnvParserOptions

_READS = ("parse_response", "parse_end_flag", "parse_tools")
_WORDED = re.compile(r"# Execute the tool \S{1,200} (?:successed|failed)\n")
"""How a manager's own answers begin, which may know the tool by a longer name."""


class RLFactoryParser(ToolParser):
    """See the module's docstring."""

    def __init__(self, options: EnvParserOptions | None = None, context: BuildContext | None = None) -> None:
        """Raises ConfigError for classes that can't be made."""
        self._options = options or EnvParserOptions()
        self._env: Any = None
        if self._options.env is not None or self._options.own_manager:
            env = shared_env(self._options, context.where if context else None)
            if overrides(env.tool_manager, _READS):
                self._env = env

    def parse(
        self,
        text: str,
        *,
        tools: Sequence[ToolSpec],
        finish: Literal["stop", "length", "abort"] = "stop",
        stopped_by: str | None = None,
        prefilled_thinking: bool = False,
    ) -> ParsedTurn:
        """Read a turn. Whether its calls name known tools and fit their schemas is the executor's part."""
        if self._env is not None:
            return _by_manager(self._env.tool_manager, text)
        turn = reading.read(text, whole_text=self._options.whole_text, thinking=prefilled_thinking)
        return turn if turn.answer is None else replace(turn, answer=turn.answer.strip())

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message]:
        """A tool message for each item, in order, worded as RLFactory does."""
        messages = tool_messages(records)
        return [replace(message, content=_reply(record)) for message, record in zip(messages, records, strict=True)]


def _reply(record: CallRecord) -> str:
    call, result = record.call, record.result
    if isinstance(call, CallError) or _WORDED.match(result.text):
        return result.text
    if result.error == "unknown_tool":
        return f"{reading.not_found(call.name)}\n{result.text}"
    word = succeeded if result.error is None else failed
    return word(call.name, dict(call.arguments), result.text)


def _by_manager(manager: Any, text: str) -> ParsedTurn:
    """What the user's class makes of a turn."""
    try:
        action, found = manager.parse_response(response_content=text)
        if action == "answer":
            return _answer(manager, text, found)
        if action == "actions":
            items = _placed([_item(tool) for tool in found], text)
            return ParsedTurn(items, content=text, status="calls" if items else "final")
        why = str(found)
    except Exception as error:  # noqa: BLE001 - a parser never raises; the model reads the error
        why = f"{type(error).__name__}: {error}"
    items = _placed([CallError("malformed", f"# Extract the tools failed due to: {why}")], text)
    return ParsedTurn(items, content=text, status="calls")


def _answer(manager: Any, text: str, found: Any) -> ParsedTurn:
    """`answer` is an answer where parse_end_flag finds one, and a turn without calls otherwise."""
    if not manager.parse_end_flag(text)[0]:
        return ParsedTurn(content=text)
    inside = reading.last_answer(str(found))
    return ParsedTurn(content=text, answer=(str(found) if inside is None else inside).strip())


def _item(tool: Any) -> ToolCall | CallError:
    """A call as `parse_tools` gives it: `{"name": …, "args": JSON}`."""
    name = str(tool["name"])
    args = tool.get("args", tool.get("arguments"))
    if name == reading.EMPTY:
        return CallError("malformed", str(args) or reading.EXTRACT_FAILED)
    if name == reading.ERROR or not name.strip():
        return CallError("malformed", reading.not_found(name))
    try:
        value = json.loads(args) if isinstance(args, str) else args
    except (ValueError, RecursionError):
        return CallError("invalid_json", str(args) or reading.EXTRACT_FAILED, name=name)
    if not isinstance(value, Mapping):
        return CallError("bad_arguments", reading.no_object(value), name=name)
    return ToolCall(name, dict(value))


def _placed(items: list[ToolCall | CallError], text: str) -> tuple[ToolCall | CallError, ...]:
    """Items with places in the text: the first is all of it, the others its end."""
    end = (len(text), len(text))
    return tuple(
        replace(item, span=end, raw="") if index else replace(item, span=(0, len(text)), raw=text)
        for index, item in enumerate(items)
    )
