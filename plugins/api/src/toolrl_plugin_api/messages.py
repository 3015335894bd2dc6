"""Messages as requests of chat completions hold them, and answers as toolrl reads them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from toolrl.errors import ChatFormatError
from toolrl.types import IMAGE_MARK, CallError, Media, Message, ToolCall, ToolSpec
from toolrl_common.images import load_image
from toolrl_plugin_chat.preamble import preamble, results_text, with_calls, with_system

Finish = Literal["stop", "length", "abort"]
_FINISHES: dict[str, Finish] = {"length": "length", "content_filter": "abort"}
_QUOTED = 120
"""Characters of broken arguments that an error quotes."""


def with_tools_as_text(messages: Sequence[Message], tools: Sequence[ToolSpec], prompt: str | None) -> list[Message]:
    """The same without anything that an API without tools lacks: tools are described in the system message, calls stand
    in the assistant's text, results in user messages."""
    given = with_system(messages, preamble(tools, "full", prompt)) if tools else messages
    found: list[Message] = []
    for role, group in groupby(given, key=lambda message: message.role):
        same = list(group)
        if role == "tool":
            media = tuple(it for message in same for it in message.media)
            found.append(Message("user", results_text(same), media))
        else:
            found += [
                Message(role, with_calls(it.content, it.tool_calls), it.media, reasoning=it.reasoning) for it in same
            ]
    return found


def as_json(messages: Sequence[Message], send_reasoning: str | None = None) -> list[dict[str, Any]]:
    """Messages of a request. `send_reasoning`: the field of assistant messages that holds their reasoning. A tool's
    images follow the results in a user message, as tool messages take text only. Raises ChatFormatError."""
    found: list[dict[str, Any]] = []
    calls: set[str] = set()
    for role, group in groupby(messages, key=lambda message: message.role):
        media: tuple[Media, ...] = ()
        for message in group:
            if role == "assistant":
                calls = {call.id for call in message.tool_calls}
                found.append(_assistant(message, send_reasoning))
            elif role != "tool":
                found.append({"role": role, "content": _content(message.content, message.media)})
            elif message.tool_call_id in calls:
                found.append({"role": role, "tool_call_id": message.tool_call_id, "content": message.content})
                media += message.media
            else:  # The answer to something in the text: an end flag that wasn't closed.
                found.append({"role": "user", "content": _content(message.content, message.media)})
        if media:
            found.append({"role": "user", "content": _content("", media)})
    return found


def _assistant(message: Message, send_reasoning: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": message.content}
    if send_reasoning is not None and message.reasoning:
        said[send_reasoning] = message.reasoning
    if message.tool_calls:
        # Empty texts are refused by some providers, and a call needs none.
        said["content"] = message.content or None
        said["tool_calls"] = [
            {"id": it.id, "type": "function", "function": {"name": it.name, "arguments": _arguments(it)}}
            for it in message.tool_calls
        ]
    return said


def _arguments(call: ToolCall) -> str:
    """As the API wrote them. Servers read them anew: what they can't read is left out."""
    return call.raw if _object(call.raw) is not None else json.dumps(dict(call.arguments), ensure_ascii=False)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _content(text: str, media: Sequence[Media]) -> str | list[dict[str, Any]]:
    """A text, or parts with the images at their marks; without marks they come first."""
    return list(_parts(text, media)) if media else text


def _parts(text: str, media: Sequence[Media]) -> Iterator[dict[str, Any]]:
    texts = text.split(IMAGE_MARK)
    if len(texts) != len(media) + 1:
        texts = [*[""] * len(media), text]
    for part, image in zip(texts, [*media, None], strict=True):
        if part:
            yield {"type": "text", "text": part}
        if image is not None:
            yield {"type": "image_url", "image_url": {"url": _data_url(image)}}


def _data_url(media: Media) -> str:
    if media.kind != "image":
        raise ChatFormatError(f"a {media.kind} can't be sent to an API", where="engine", hint="Give images instead.")
    file = io.BytesIO()
    load_image(media.data, "engine").save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


# Answers.


def read_text(message: Mapping[str, Any]) -> str:
    """What an answer's message says: its content, its text parts, or the words of a refusal."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(str(it.get("text") or "") for it in content if isinstance(it, Mapping))
    said = content or message.get("refusal")
    return said if isinstance(said, str) else ""


def read_reasoning(message: Mapping[str, Any]) -> str | None:
    """Its reasoning, where the API shows it."""
    found = message.get("reasoning_content") or message.get("reasoning")
    return found if isinstance(found, str) else None


def read_finish(choice: Mapping[str, Any]) -> Finish:
    return _FINISHES.get(str(choice.get("finish_reason")), "stop")


def read_calls(message: Mapping[str, Any], finish: Finish) -> tuple[ToolCall | CallError, ...]:
    """Its calls in order. One whose arguments are no JSON object is an error that the model reads."""
    calls = message.get("tool_calls")
    functions = (it.get("function") for it in calls if isinstance(it, Mapping)) if isinstance(calls, list) else ()
    return tuple(_call(it, finish) for it in functions if isinstance(it, Mapping))


def _call(function: Mapping[str, Any], finish: Finish) -> ToolCall | CallError:
    name, given = function.get("name"), function.get("arguments")
    text = given if isinstance(given, str) else json.dumps(given if given is not None else {}, ensure_ascii=False)
    text = text if text.strip() else "{}"
    if not isinstance(name, str) or not name:
        return CallError("missing_name", "The call names no tool.", raw=text)
    arguments = _object(text)
    if arguments is not None:
        return ToolCall(name, arguments, raw=text)
    shown = text if len(text) <= _QUOTED else f"{text[:_QUOTED]}…"
    if finish == "length":
        message = f"The call of {name!r} was cut off at the limit of tokens and didn't run: {shown!r}"
        return CallError("unclosed", message, name, raw=text)
    message = f"The arguments of {name!r} have to be one JSON object, and these can't be read as one: {shown!r}"
    return CallError("invalid_json", message, name, raw=text)
