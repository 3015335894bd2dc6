"""`/v1/responses`: OpenAI's responses."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

from toolrl.types import Message
from toolrl_plugin_gateway import dialect, wishes
from toolrl_plugin_gateway.chat_completions import error as error
from toolrl_plugin_gateway.dialect import Answer, Event, Json, Known, Question, RefusedError
from toolrl_plugin_gateway.fields import RESPONSES as FIELDS


def read(body: Json, known: Known) -> Question:
    """See `dialect`."""
    ignored = FIELDS.check(body)
    text = dialect.read_object(body.get("text") or {}, "text")
    if dialect.read_object(body.get("reasoning") or {}, "reasoning").get("context") == "current_turn":
        raise RefusedError.invalid("reasoning.context 'current_turn' is not supported: turns keep their thinking")
    before = body.get("previous_response_id")
    if before is not None and (not isinstance(before, str) or before not in known.responses):
        raise RefusedError.invalid(f"previous_response_id {before!r:.80} is of no response of this episode")
    given = body.get("input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else dialect.read_list(given, "input")
    items = [_resolved(item, f"input[{index}]", known) for index, item in enumerate(items)]
    system = dialect.read_content(body.get("instructions"), "instructions")
    instructions = [Message("system", system)] if system else []
    messages = [*instructions, *known.responses.get(str(before), ()), *_messages(items)]
    if not messages:
        raise RefusedError.invalid("input is empty")
    tools = dialect.read_list(body.get("tools"), "tools")
    specs = [dialect.read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    choice = wishes.read_choice(body.get("tool_choice"), specs, "tool_choice")
    hints = {"text.format": wishes.read_format(text.get("format"), "text.format")}
    return Question(
        messages=dialect.named_tools(messages),
        tools=choice.tools,
        model=str(body.get("model")),
        max_tokens=dialect.read_limit(body, "max_output_tokens"),
        instructions=len(instructions),
        hints=wishes.told(choice, hints, one_call=body.get("parallel_tool_calls") is False),
        allows_calls=choice.allows_calls,
        ignored=ignored,
    )


def _resolved(item: Json, where: str, known: Known) -> Json:
    """An item, also if it is named by its id alone. Raises RefusedError."""
    if item.get("type") != "item_reference" and (item.keys() != {"id"}):
        return item
    name = item.get("id")
    if not isinstance(name, str) or name not in known.items:
        raise RefusedError.invalid(f"{where} refers to {name!r:.80}, which is no output item of this episode")
    return known.items[name]


def _messages(items: list[Json]) -> Iterator[Message]:
    """Reasoning, text and calls that follow one another are one turn."""
    turn: Message | None = None
    for index, item in enumerate(items):
        kind, where = item.get("type", "message"), f"input[{index}]"
        if kind == "reasoning":
            if turn is not None:
                yield turn
            turn = Message("assistant", reasoning=_reasoning(item, where) or None)
        elif kind == "function_call":
            call = dialect.read_arguments(item.get("arguments"), item.get("name", ""), item.get("call_id"))
            turn = turn or Message("assistant")
            turn = replace(turn, tool_calls=(*turn.tool_calls, call))
        elif kind == "message" and item.get("role") == "assistant":
            if turn is not None and (turn.content or turn.tool_calls):
                yield turn
                turn = None
            text = dialect.read_content(item.get("content"), f"{where}.content")
            turn = replace(turn or Message("assistant"), content=text)
        else:
            if turn is not None:
                yield turn
            turn = None
            yield _given(item, kind, where)
    if turn is not None:
        yield turn


def _reasoning(item: Json, where: str) -> str:
    parts = dialect.read_list(item.get("content") or item.get("summary"), f"{where}.summary")
    return "\n".join(str(part.get("text", "")) for part in parts)


def _given(item: Json, kind: Any, where: str) -> Message:
    if kind == "function_call_output":
        text = dialect.read_content(item.get("output"), f"{where}.output")
        return Message("tool", text, tool_call_id=str(item.get("call_id")))
    role = item.get("role")
    if kind != "message" or role not in ("system", "developer", "user"):
        raise RefusedError.invalid(f"{where} of type {kind!r:.80} and role {role!r:.80} is not supported")
    text = dialect.read_content(item.get("content"), f"{where}.content")
    return Message("user" if role == "user" else "system", text)


def write(body: Json, answer: Answer) -> Json:
    """See `dialect`."""
    done = {"status": "completed"}
    output: list[Json] = []
    if answer.turn.reasoning:
        # Some clients read the summary; others send thinking back only if it is the content.
        summary = [{"type": "summary_text", "text": answer.turn.reasoning}]
        thinking = [{"type": "reasoning_text", "text": answer.turn.reasoning}]
        output.append({"type": "reasoning", "id": _id("rs"), "summary": summary, "content": thinking})
    if answer.text or not answer.calls:
        content = [{"type": "output_text", "text": answer.text, "annotations": [], "logprobs": []}]
        output.append({"type": "message", "id": _id("msg"), "role": "assistant", "content": content, **done})
    for call in answer.calls:
        written = {"call_id": call.id, "name": call.name, "arguments": dialect.dumps(call.arguments)}
        output.append({"type": "function_call", "id": _id("fc"), **written, **done})
    given, sampled = answer.prompt_tokens, answer.turn.sampled_tokens
    cut = answer.finish == "length"
    return {
        "id": _id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": body.get("model"),
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": None,
        "tool_choice": "auto",
        "tools": body.get("tools") or [],
        "top_p": None,
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + sampled,
        },
    }


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def stream(body: Json, response: Json) -> Iterator[Event]:
    """See `dialect`."""
    numbers = count()

    def event(kind: str, **data: Any) -> Event:
        return kind, {"type": kind, "sequence_number": next(numbers), **data}

    begun = {**response, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}
    yield event("response.created", response=begun)
    yield event("response.in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty: Json = {"status": "in_progress"} if "status" in item else {}
        match item["type"]:
            case "message":
                part, at = item["content"][0], {**place, "content_index": 0}
                yield event("response.output_item.added", output_index=index, item={**item, **empty, "content": []})
                yield event("response.content_part.added", **at, part={**part, "text": ""})
                yield event("response.output_text.delta", **at, delta=part["text"], logprobs=[])
                yield event("response.output_text.done", **at, text=part["text"], logprobs=[])
                yield event("response.content_part.done", **at, part=part)
            case "function_call":
                added = {**item, **empty, "arguments": ""}
                arguments = item["arguments"]
                yield event("response.output_item.added", output_index=index, item=added)
                yield event("response.function_call_arguments.delta", **place, delta=arguments)
                yield event("response.function_call_arguments.done", **place, name=item["name"], arguments=arguments)
            case "reasoning":
                part, at = item["summary"][0], {**place, "summary_index": 0}
                added = {**item, "summary": [], "content": []}
                yield event("response.output_item.added", output_index=index, item=added)
                yield event("response.reasoning_summary_part.added", **at, part={**part, "text": ""})
                yield event("response.reasoning_summary_text.delta", **at, delta=part["text"])
                yield event("response.reasoning_summary_text.done", **at, text=part["text"])
                yield event("response.reasoning_summary_part.done", **at, part=part)
                at = {**place, "content_index": 0}
                yield event("response.reasoning_text.delta", **at, delta=part["text"])
                yield event("response.reasoning_text.done", **at, text=part["text"])
        yield event("response.output_item.done", output_index=index, item=item)
    yield event(f"response.{response['status']}", response=response)
