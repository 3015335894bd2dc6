"""Tools, calls and results in plain messages, for templates that know of none and for base models.

The form is the one that Hermes and Qwen models use: JSON Schemas in `<tools>`, calls as JSON in `<tool_call>`,
results in `<tool_response>` inside a user message. The parser `hermes` reads it. `short` describes each tool in
one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolrl.types import Message, ToolCall, ToolSpec

_FULL = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

_SHORT = """Tools:
{tools}
<tool_call>
{"name": NAME, "arguments": {ARGUMENTS}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Wording:
    """How tools, calls and results are written into plain messages, where the template doesn't do it or isn't to."""

    preamble: Callable[[Sequence[ToolSpec]], str]
    """The description of the tools; empty for no description."""
    with_calls: Callable[[str, Sequence[ToolCall]], str]
    """An assistant's content with its calls."""
    results: Callable[[Sequence[Message]], str]
    """The content of a user message that holds these tool messages."""
    markup: str = ""
    """Tags that it uses: those among them that are tokens of their own can't come from a tool's result."""


def preamble(specs: Sequence[ToolSpec], style: Literal["full", "short"], own_text: str | None = None) -> str:
    """The description of a model's tools. `own_text` replaces the style's wording, `{tools}` in it the tools' lines."""
    if style == "full":
        lines = [json.dumps(spec.as_function(), ensure_ascii=False) for spec in specs]
    else:
        lines = [signature(spec) for spec in specs]
    text = own_text if own_text is not None else {"full": _FULL, "short": _SHORT}[style]
    return text.replace("{tools}", "\n".join(lines))


def with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """The messages with `text` at the end of their system message, or in one of its own."""
    if messages and messages[0].role == "system":
        return [Message("system", f"{messages[0].content}\n\n{text}"), *messages[1:]]
    return [Message("system", text), *messages]


def signature(spec: ToolSpec) -> str:
    """`name(argument: type, optional?: type): description`, on one line."""
    properties = spec.parameters.get("properties", {})
    required = set(spec.parameters.get("required", ()))
    arguments = [f"{name}{'' if name in required else '?'}: {_type(schema)}" for name, schema in properties.items()]
    description = " ".join(spec.description.split())
    return f"{spec.name}({', '.join(arguments)}){': ' if description else ''}{description}"


def _type(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return "|".join(json.dumps(value, ensure_ascii=False) for value in schema["enum"])
    kind = schema.get("type", "any")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        return "|".join(map(str, kind))
    return f"{_type(schema.get('items'))}[]" if kind == "array" else str(kind)


def call_text(calls: Sequence[ToolCall]) -> str:
    """Calls as text, one block each."""
    return "\n".join(
        "<tool_call>\n"
        + json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        + "\n</tool_call>"
        for call in calls
    )


def with_calls(content: str, calls: Sequence[ToolCall]) -> str:
    """An assistant's content with its calls as text behind it."""
    return "\n".join(part for part in (content, call_text(calls)) if part)


def results_text(results: Sequence[Message]) -> str:
    """The content of a user message that holds these tool messages."""
    return "\n".join(f"<tool_response>\n{message.content}\n</tool_response>" for message in results)
