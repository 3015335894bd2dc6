"""`/v1/messages`: Anthropic's messages."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from toolrl.types import Message, ToolSpec
from toolrl_plugin_gateway import dialect, wishes
from toolrl_plugin_gateway.dialect import Answer, Event, Json, Known, Question, RefusedError
from toolrl_plugin_gateway.fields import MESSAGES as FIELDS

_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    500: "api_error",
}
_FINISH = {"calls": "tool_use", "length": "max_tokens", "stop": "end_turn"}


def read(body: Json, known: Known) -> Question:
    """See `dialect`."""
    ignored = FIELDS.check(body)
    _refuse_thread(body.get("thread"))
    items = dialect.read_list(body.get("messages"), "messages")
    if not items:
        raise RefusedError.invalid("messages is empty")
    system = dialect.read_content(body.get("system"), "system")
    messages = [Message("system", system)] if system else []
    for index, item in enumerate(items):
        messages += _messages(item, f"messages[{index}]")
    tools = dialect.read_list(body.get("tools"), "tools")
    specs = [_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice, one_call = _choice(body.get("tool_choice"), specs)
    output = dialect.read_object(body.get("output_config") or {}, "output_config")
    if output.get("task_budget"):
        raise RefusedError.invalid("output_config.task_budget is not supported: name the budget in the prompt")
    wanted = output.get("format") or body.get("output_format")
    hints = {"output_config.format": wishes.read_format(wanted, "output_config.format")}
    return Question(
        messages=dialect.named_tools(messages),
        tools=choice.tools,
        model=str(body.get("model")),
        max_tokens=dialect.read_limit(body, "max_tokens"),
        stop=dialect.read_stop(body.get("stop_sequences"), "stop_sequences"),
        hints=wishes.told(choice, hints, one_call=one_call),
        allows_calls=choice.allows_calls,
        prefilled=messages[-1].role == "assistant",
        ignored=ignored,
    )


def _refuse_thread(value: Any) -> None:
    """Raises RefusedError for a conversation that the server should keep. The SDK then sends whole histories."""
    if value:
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        text = "thread is not supported: send the whole history (tool_runner: thread=False)"
        raise RefusedError(400, "invalid_request", text, details=details)


def _choice(value: Any, tools: Sequence[ToolSpec]) -> tuple[wishes.Choice, bool]:
    """The tool choice, and whether parallel calls are unwanted. Raises RefusedError."""
    chosen = dialect.read_object(value or {}, "tool_choice")
    one_call = chosen.get("disable_parallel_tool_use") is True
    match chosen.get("type", "auto"):
        case "auto" | "none" as kind:
            return wishes.read_choice(kind, tools, "tool_choice"), one_call
        case "any":
            return wishes.required(tools, "tool_choice"), one_call
        case "tool":
            return wishes.named(chosen.get("name"), tools, "tool_choice"), one_call
    raise RefusedError.invalid(f"tool_choice.type is {chosen['type']!r:.80}, expected auto, any, tool or none")


def _tool(tool: Json, where: str) -> ToolSpec:
    kind = "function" if tool.get("type") in (None, "custom") else tool["type"]
    parameters = dialect.read_object(tool.get("input_schema", {}), f"{where}.input_schema")
    description = tool.get("description")
    if examples := dialect.read_list(tool.get("input_examples"), f"{where}.input_examples"):
        shown = "\n".join(map(dialect.dumps, examples))
        description = f"{description or ''}\n\nExamples of its input:\n{shown}".strip()
    return dialect.read_tool({**tool, "type": kind, "description": description, "parameters": parameters}, where)


def _messages(item: Json, where: str) -> Iterator[Message]:
    """A message; each tool result in it is one of its own."""
    role, content = item.get("role"), item.get("content")
    if role not in ("system", "user", "assistant"):
        raise RefusedError.invalid(f"{where}.role is {role!r:.80}, expected user or assistant")
    content = [{"type": "text", "text": content}] if isinstance(content, str) else content
    blocks = dialect.read_list(content, f"{where}.content")
    if role == "assistant":
        yield _assistant(blocks, where)
        return
    for block in blocks:
        if block.get("type") == "tool_result":
            text = dialect.read_content(block.get("content"), f"{where}.content")
            yield Message("tool", text, tool_call_id=str(block.get("tool_use_id")))
    rest = [block for block in blocks if block.get("type") != "tool_result"]
    if rest or not blocks:
        text = dialect.read_content(rest, f"{where}.content")
        yield Message(role, text)


def _assistant(blocks: list[Json], where: str) -> Message:
    calls, thinking, rest = [], [], []
    for block in blocks:
        match block:
            case {"type": "tool_use"}:
                calls.append(dialect.read_arguments(block.get("input"), block.get("name", ""), block.get("id")))
            case {"type": "thinking", "thinking": str(text)}:
                thinking.append(text)
            case {"type": "redacted_thinking"}:
                pass
            case _:
                rest.append(block)
    text = dialect.read_content(rest, f"{where}.content")
    return Message("assistant", text, tool_calls=tuple(calls), reasoning="\n".join(thinking) or None)


def write(body: Json, answer: Answer) -> Json:
    """See `dialect`."""
    content: list[Json] = []
    wanted = body.get("thinking")
    if answer.turn.reasoning and isinstance(wanted, dict) and wanted.get("type") != "disabled":
        content.append({"type": "thinking", "thinking": answer.turn.reasoning, "signature": "toolrl"})
    if answer.text:
        content.append({"type": "text", "text": answer.text, "citations": None})
    content += [{"type": "tool_use", "id": it.id, "name": it.name, "input": dict(it.arguments)} for it in answer.calls]
    stopped = answer.finish == "stop" and answer.stopped_by is not None
    return {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": body.get("model"),
        "content": content,
        "stop_reason": "stop_sequence" if stopped else _FINISH[answer.finish],
        "stop_sequence": answer.stopped_by if stopped else None,
        "usage": {"input_tokens": answer.prompt_tokens, "output_tokens": answer.turn.sampled_tokens},
    }


def stream(body: Json, response: Json) -> Iterator[Event]:
    """See `dialect`."""

    def event(kind: str, **data: object) -> Event:
        return kind, {"type": kind, **data}

    begun = {**response, "content": [], "stop_reason": None, "stop_sequence": None}
    yield event("message_start", message={**begun, "usage": {**response["usage"], "output_tokens": 0}})
    for index, block in enumerate(response["content"]):
        empty, deltas = _in_parts(block)
        yield event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield event("content_block_delta", index=index, delta=delta)
        yield event("content_block_stop", index=index)
    end = {name: response[name] for name in ("stop_reason", "stop_sequence")}
    yield event("message_delta", delta=end, usage=response["usage"])
    yield event("message_stop")


def _in_parts(block: Json) -> tuple[Json, list[Json]]:
    """A block as it begins, and what is added to it."""
    match block["type"]:
        case "thinking":
            parts = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
            return {"type": "thinking", "thinking": "", "signature": ""}, parts
        case "tool_use":
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": dialect.dumps(block["input"])}]
    return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]


def error(refusal: RefusedError) -> Json:
    """See `dialect`."""
    kind = _ERRORS.get(refusal.status, "invalid_request_error")
    details = {} if refusal.details is None else {"details": refusal.details}
    return {"type": "error", "error": {"type": kind, "message": refusal.message, "code": refusal.code, **details}}
