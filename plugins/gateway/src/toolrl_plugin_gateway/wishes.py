"""What a request wants of the answer besides the messages: its format, and whether tools are called.

Both are shown to the model in words and aren't enforced: no engine takes a grammar, and a token that was sampled under
one could only be trained with the mask of the tokens that it allowed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolrl.types import ToolSpec
from toolrl_plugin_gateway.dialect import Json, RefusedError, read_list, read_object

ONE_CALL = "Call at most one tool at a time."
_JSON = "Answer with a JSON object and nothing else."
_SCHEMA = "Answer with JSON that matches this schema, and nothing else:\n"


@dataclass(frozen=True, slots=True)
class Choice:
    """A tool choice as the model is asked."""

    tools: list[ToolSpec]
    """Those that are offered."""
    hint: str = ""
    """What the model is told; empty for a free choice."""
    allows_calls: bool = True
    """False: a call is text to the client."""


def read_format(value: Any, what: str) -> str:
    """What the model is told of a format, in OpenAI's or Anthropic's form; empty for text. Raises RefusedError."""
    if value is None:
        return ""
    wanted = read_object(value, what)
    kind = wanted.get("type")
    if kind == "text":
        return ""
    if kind not in ("json_object", "json_schema"):
        raise RefusedError.invalid(f"{what}.type is {kind!r:.80}, expected text, json_object or json_schema")
    if kind == "json_object":
        return _JSON
    held = wanted.get("json_schema", wanted)  # The responses API and Anthropic's have no object around it.
    schema = read_object(held, f"{what}.json_schema").get("schema")
    if schema is None:
        return _JSON
    return _SCHEMA + json.dumps(read_object(schema, f"{what}.schema"), ensure_ascii=False)


def read_choice(value: Any, tools: Sequence[ToolSpec], what: str) -> Choice:
    """OpenAI's tool_choice, of both of its APIs. Raises RefusedError."""
    match value:
        case None | "auto":
            return Choice(list(tools))
        case "none":
            return Choice([], allows_calls=False)
        case "required":
            return required(tools, what)
        case {"type": "function"}:
            return named(value.get("name") or read_object(value.get("function"), what).get("name"), tools, what)
        case {"type": "allowed_tools"}:
            return _allowed(read_object(value.get("allowed_tools", value), what), tools, what)
    known = "auto, none, required, a function or allowed_tools"
    raise RefusedError.invalid(f"{what} is {value!r:.80}: only function tools are supported; expected {known}")


def told(choice: Choice, formats: Mapping[str, str], *, one_call: bool) -> dict[str, str]:
    """What the model is told, by the field that asks for it. `one_call`: parallel calls are unwanted."""
    calls = {"tool_choice": choice.hint, "parallel_tool_calls": ONE_CALL if one_call and choice.tools else ""}
    return {name: text for name, text in {**calls, **formats}.items() if text}


def required(tools: Sequence[ToolSpec], what: str) -> Choice:
    """Some tool has to be called. Raises RefusedError if there is none."""
    if not tools:
        raise RefusedError.invalid(f"{what} requires a call, and the request has no tools")
    return Choice(list(tools), "Call a tool: an answer without a call is invalid.")


def named(name: Any, tools: Sequence[ToolSpec], what: str) -> Choice:
    """This tool has to be called. Raises RefusedError if there is no such tool."""
    if name not in [tool.name for tool in tools]:
        raise RefusedError.invalid(f"{what} names the tool {name!r:.80}, which the request doesn't have")
    return Choice(list(tools), f"Call the tool {name}: any other answer is invalid.")


def _allowed(value: Json, tools: Sequence[ToolSpec], what: str) -> Choice:
    items = read_list(value.get("tools"), f"{what}.tools")
    names = [it.get("name") or read_object(it.get("function"), f"{what}.tools").get("name") for it in items]
    offered = [tool for tool in tools if tool.name in names]
    if len(offered) < len(names):
        raise RefusedError.invalid(f"{what}.tools names tools that the request doesn't have: {names!r:.200}")
    return required(offered, what) if value.get("mode") == "required" else Choice(offered)
