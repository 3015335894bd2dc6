"""The answers of an environment's tools, as the model gets them.

A `CallToolObservation` holds a result or an error of one of five types. Each becomes an answer that says what to do
next:

| type | answer | kind |
|---|---|---|
| `execution_error` | the tool failed, and how | `tool_error` |
| `invalid_args` | what was wrong, and the right form | `bad_arguments` |
| `tool_not_found` | there is no such tool, and which there are | `unknown_tool` |
| `transport_error` | the tool couldn't be reached; may be tried again by `policy.retry` | `unavailable` |
| `timeout` | it took too long, and may have had its effect | `timeout` |

A server reads the type off the words of an exception: "key not found" in a tool that is there says `tool_not_found`.
Such an error is shown as the tool's own. Reward and end of the episode count with an error as with a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.errors import TransientToolError
from toolrl.tools.validation import arguments_form
from toolrl.types import ToolResult, ToolSpec
from toolrl_plugin_openenv.observations import Show, as_text, clean, observation_text
from toolrl_plugin_openenv.wire import INVALID, Failure, Observed

LONGEST_ERROR = 2000
MAX_CHARS = 1_000_000
"""Of a result, before the policy counts its tokens."""


def call_result(
    answer: Observed | Failure, spec: ToolSpec, names: Sequence[str], show: Show = observation_text
) -> ToolResult:
    """What the model gets. `spec` is that of the called tool, `names` are all that there are; `show` makes the text of
    an observation that is no tool's. Raises TransientToolError for a tool that couldn't be reached."""
    if isinstance(answer, Failure):
        return _failed(answer, spec)
    observation = answer.observation
    error = observation.get("error")
    if isinstance(error, Mapping):
        return _error(error, answer, spec, names)
    if "result" in observation and "tool_name" in observation:
        text, failed = result_text(observation["result"])
    else:
        text, failed = show(observation), False  # An environment may answer with observations of its own.
    if len(text) > MAX_CHARS:
        half = MAX_CHARS // 2
        text = f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"
    return ToolResult(
        clean(text) or "(no output)", reward=answer.reward, done=answer.done, error="tool_error" if failed else None
    )


def result_text(result: Any) -> tuple[str, bool]:
    """The text of a tool's result, and whether it is an error. MCP's form (`content` pieces, `data`) is read."""
    if not isinstance(result, Mapping):
        return as_text(result), False
    failed = result.get("is_error") is True or result.get("isError") is True
    content = result.get("content")
    if not isinstance(content, list):
        return as_text(result.get("data", result)), failed
    text = "\n\n".join(piece for piece in map(_piece, content) if piece)
    return text or as_text(result.get("structured_content") or result.get("data")), failed


def _piece(piece: Any) -> str:
    if not isinstance(piece, Mapping):
        return as_text(piece)
    if isinstance(piece.get("text"), str):
        return str(piece["text"])
    resource = piece.get("resource")
    if isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
        return str(resource["text"])
    kind = piece.get("mimeType") or piece.get("mime_type") or "unknown type"
    return f"[{str(piece.get('type', 'content'))[:40]}, {str(kind)[:80]}]"


def _error(error: Mapping[str, Any], answer: Observed, spec: ToolSpec, names: Sequence[str]) -> ToolResult:
    kind, said = str(error.get("error_type")), clean(str(error.get("message") or "it didn't say why"))[:LONGEST_ERROR]
    if kind == "transport_error":
        text = f"The tool {spec.name!r} couldn't be reached: {said}"
        if answer.reward is None and not answer.done:
            raise TransientToolError(text)
        return ToolResult(text, reward=answer.reward, done=answer.done, error="unavailable")
    if kind == "invalid_args":
        text = f"Bad arguments for the tool {spec.name!r}: {said} Right form: {arguments_form(spec)}"
        kind = "bad_arguments"
    elif kind == "timeout":
        text = (
            f"The tool {spec.name!r} took too long: {said}. It may have had its effect all the same: look before you "
            "call it again."
        )
    elif kind == "tool_not_found" and (spec.name not in names or f"Unknown tool: {spec.name!r}" in said):
        text, kind = f"The environment has no tool {spec.name!r}. Available tools: {', '.join(names)}.", "unknown_tool"
    else:
        text, kind = f"The tool {spec.name!r} failed: {said}", "tool_error"
    return ToolResult(text, reward=answer.reward, done=answer.done, error=kind)


def _failed(failure: Failure, spec: ToolSpec) -> ToolResult:
    """An error of the session itself: an action that the environment doesn't take, or a step that raised."""
    if failure.code == INVALID:
        text = (
            f"Bad arguments for the tool {spec.name!r}: {validation_text(failure)}. Right form: {arguments_form(spec)}"
        )
        return ToolResult(text, error="bad_arguments", done=failure.over)
    text = f"The environment failed at the tool {spec.name!r}: {clean(failure.message)[:LONGEST_ERROR]}"
    return ToolResult(text, error="crash")


def validation_text(failure: Failure) -> str:
    """What a server's validation found, in one line."""
    errors = failure.data.get("errors")
    lines = []
    for error in errors[:4] if isinstance(errors, list) else ():
        if isinstance(error, Mapping):
            place = error.get("loc")
            path = ".".join(map(str, place)) if isinstance(place, list) else ""
            lines.append(clean(f"{path}: {error.get('msg')}" if path else str(error.get("msg"))))
    return "; ".join(lines)[:LONGEST_ERROR] or clean(failure.message)[:LONGEST_ERROR]
