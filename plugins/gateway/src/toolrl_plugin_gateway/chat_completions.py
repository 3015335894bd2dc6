"""`/v1/chat/completions`: OpenAI's chat completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

from toolrl.types import Message
from toolrl_plugin_gateway import dialect, wishes
from toolrl_plugin_gateway.dialect import Answer, Event, Json, Known, Question, RefusedError
from toolrl_plugin_gateway.fields import CHAT as FIELDS

_FINISH = {"calls": "tool_calls", "length": "length", "stop": "stop"}


def read(body: Json, known: Known) -> Question:
    """See `dialect`."""
    ignored = FIELDS.check(body)
    if body.get("n") not in (None, 1):
        raise RefusedError.invalid(f"n is {body['n']!r:.80}: one answer a request; ask several times")
    tools = dialect.read_list(body.get("tools"), "tools")
    specs = [dialect.read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = wishes.read_choice(body.get("tool_choice"), specs, "tool_choice")
    hints = {"response_format": wishes.read_format(body.get("response_format"), "response_format")}
    return Question(
        messages=read_messages(body.get("messages"), "messages"),
        tools=choice.tools,
        model=str(body.get("model")),
        max_tokens=dialect.read_limit(body, "max_completion_tokens", "max_tokens"),
        stop=dialect.read_stop(body.get("stop"), "stop"),
        hints=wishes.told(choice, hints, one_call=body.get("parallel_tool_calls") is False),
        allows_calls=choice.allows_calls,
        ignored=ignored,
    )


def read_messages(value: Any, where: str) -> list[Message]:
    """Messages in OpenAI's form. Raises RefusedError for what they can't hold, and where there are none."""
    items = dialect.read_list(value, where)
    if not items:
        raise RefusedError.invalid(f"{where} is empty")
    return dialect.named_tools(_message(item, f"{where}[{index}]") for index, item in enumerate(items))


def _message(item: Json, where: str) -> Message:
    role: Any = item.get("role")
    text = dialect.read_content(item.get("content"), f"{where}.content")
    if role in ("system", "developer", "user"):
        return Message("user" if role == "user" else "system", text)
    if role == "tool":
        return Message("tool", text, tool_call_id=str(item.get("tool_call_id")))
    if role != "assistant":
        raise RefusedError.invalid(f"{where}.role is {role!r:.80}, expected system, developer, user, assistant or tool")
    if lost := [name for name in ("function_call", "audio", "prefix") if item.get(name)]:
        raise RefusedError.invalid(f"{where}.{lost[0]} is not supported: send text and tool_calls")
    calls = []
    for index, call in enumerate(dialect.read_list(item.get("tool_calls"), f"{where}.tool_calls")):
        function = dialect.read_object(call.get("function"), f"{where}.tool_calls[{index}].function")
        calls.append(dialect.read_arguments(function.get("arguments"), function.get("name", ""), call.get("id")))
    thinking = item.get("reasoning_content") or item.get("reasoning")
    return Message(
        "assistant", text, tool_calls=tuple(calls), reasoning=thinking if isinstance(thinking, str) else None
    )


def write(body: Json, answer: Answer) -> Json:
    """See `dialect`."""
    message = write_message(
        Message("assistant", answer.text, tool_calls=tuple(answer.calls), reasoning=answer.turn.reasoning)
    )
    given, sampled = answer.prompt_tokens, answer.turn.sampled_tokens
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": _FINISH[answer.finish], "logprobs": None}],
        "usage": {"prompt_tokens": given, "completion_tokens": sampled, "total_tokens": given + sampled},
    }


def write_message(message: Message) -> Json:
    """A message in OpenAI's form, without images."""
    written: Json = {"role": message.role, "content": message.content}
    if message.tool_calls:
        written["content"] = message.content or None
        written["tool_calls"] = [
            {
                "id": it.id,
                "type": "function",
                "function": {"name": it.name, "arguments": dialect.dumps(it.arguments)},
            }
            for it in message.tool_calls
        ]
    if message.reasoning:
        written["reasoning_content"] = message.reasoning
    if message.tool_call_id is not None:
        written["tool_call_id"] = message.tool_call_id
    return written


def stream(body: Json, response: Json) -> Iterator[Event]:
    """See `dialect`."""
    head = {name: response[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    (choice,) = response["choices"]
    message = dict(choice["message"])
    calls = message.pop("tool_calls", ())
    deltas: list[Json] = [{"role": "assistant", "content": ""}]
    deltas += [{name: message[name]} for name in ("reasoning_content", "content") if message.get(name)]
    deltas += [{"tool_calls": [{"index": index, **call}]} for index, call in enumerate(calls)]
    for delta in deltas:
        yield None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield None, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}]}
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield None, {**head, "choices": [], "usage": response["usage"]}
    yield None, "[DONE]"


def error(refusal: RefusedError) -> Json:
    """See `dialect`."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    return {"error": {"message": refusal.message, "type": kind, "param": None, "code": refusal.code}}
