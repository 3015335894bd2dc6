"""One chat message of a data row: OpenAI's form, ShareGPT's `from` and `value`, or a `Message` that is at hand.

What a key says is read, refused, or remarked on; nothing is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from toolrl import bounded_json
from toolrl.chat.row_remarks import remark
from toolrl.errors import DataError
from toolrl.types import IMAGE_MARK, Message, Role, ToolCall

ROLES: tuple[str, ...] = get_args(Role)
_OTHER_ROLES = {"developer": "system", "function": "tool"}
"""OpenAI's newer name of the system's role, and the older one of the tool's."""
_CALL_ROLES = ("tool_call", "tool_response", "function_call", "observation")
"""Roles of ms-swift's and LLaMA-Factory's messages that hold calls, or answers to them."""
_CALLS = "Write conversations with calls in OpenAI's form: `role`, `content`, `tool_calls`, `tool_call_id`."
_SHAREGPT = {"system": "system", "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant"}
_REASONING = ("reasoning_content", "reasoning", "thinking")
_TRAINED = ("weight", "loss", "train")
"""Names of the mask of an assistant message: OpenAI's, ms-swift's and axolotl's."""
_KNOWN = {"role", "content", "tool_calls", "function_call", "tool_call_id", "name", *_REASONING, *_TRAINED}
_KNOWN_IN_CALL = {"id", "type", "index", "function", "name", "arguments"}


def read_message(item: Any, path: str) -> Message:
    """A message. Raises DataError, which names the place within the row, `path`."""
    if isinstance(item, Message):
        return _checked(item, path)
    if not isinstance(item, Mapping):
        raise _bad(f"{path!r} is {short(item)}, expected an object with 'role' and 'content'")
    if "role" not in item and "from" in item:
        item = _from_sharegpt(item, path)
    role = _OTHER_ROLES.get(str(item.get("role")), item.get("role"))
    if role not in ROLES:
        hint = _CALLS if role in _CALL_ROLES else None
        raise DataError(f"'{path}.role' is {short(role)}, expected one of {', '.join(ROLES)}", hint=hint)
    message = Message(
        role=role,
        content=_content(item.get("content"), f"{path}.content"),
        tool_calls=tuple(_calls(item, role, path)),
        tool_call_id=_text(item, "tool_call_id", path),
        name=_text(item, "name", path),
        reasoning=_reasoning(item, path),
        trained=_trained(item, role, path),
    )
    says_nothing = item.get("content") is None and not message.tool_calls and not message.reasoning
    if says_nothing and role != "tool":
        raise _bad(f"'{path}.content' is missing; the message has: {', '.join(map(str, item))}")
    _remark_on_keys(item, role, path)
    return message


def _checked(message: Message, path: str) -> Message:
    """A message that was made in Python."""
    if message.role not in ROLES:
        raise _bad(f"'{path}.role' is {short(message.role)}, expected one of {', '.join(ROLES)}")
    if not isinstance(message.content, str):
        raise _bad(f"'{path}.content' is {short(message.content)}, expected a text")
    if message.tool_calls and message.role != "assistant":
        raise _misplaced_calls(message.role, path)
    for index, call in enumerate(message.tool_calls):
        if not isinstance(call, ToolCall) or not isinstance(call.arguments, Mapping):
            raise _bad(f"'{path}.tool_calls[{index}]' is {short(call)}, expected a ToolCall whose arguments are a dict")
    return message


def _from_sharegpt(item: Mapping[str, Any], path: str) -> dict[str, Any]:
    speaker = item["from"]
    role = _SHAREGPT.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        raise DataError(
            f"'{path}.from' is {short(speaker)}, expected one of {', '.join(_SHAREGPT)}",
            hint=_CALLS,
        )
    rest = {key: value for key, value in item.items() if key not in ("from", "value")}
    return {"role": role, "content": item.get("value"), **rest}


def _calls(item: Mapping[str, Any], role: str, path: str) -> Iterator[ToolCall]:
    calls, where = item.get("tool_calls"), f"{path}.tool_calls"
    if isinstance(calls, str):
        calls = _json(calls, where, "a list of calls") if calls.strip() else None
    if not calls and item.get("function_call"):  # OpenAI's form before there were several calls
        calls, where = [item["function_call"]], f"{path}.function_call"
    if not calls:
        return
    if isinstance(calls, str | Mapping) or not isinstance(calls, Sequence):
        raise _bad(f"{where!r} is {short(calls)}, expected a list")
    if role != "assistant":
        raise _misplaced_calls(role, path)
    for index, call in enumerate(calls):
        yield _call(call, f"{where}[{index}]")


def _call(item: Any, path: str) -> ToolCall:
    if isinstance(item, ToolCall):
        return item
    function = item.get("function", item) if isinstance(item, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not name:
        raise _bad(f"{path!r} is {short(item)}, expected {{'function': {{'name': …, 'arguments': …}}}}")
    unknown = [key for key in {**item, **function} if key not in _KNOWN_IN_CALL]
    if unknown and function.get("arguments") is None:
        raise _bad(f"{path!r} has no 'arguments'; it has: {', '.join(map(str, {**item, **function}))}")
    for key in unknown:
        remark(f"call.{key}", f"'{path}.{key}' has no effect; a call has 'id', 'name' and 'arguments'")
    arguments = read_object(function.get("arguments"), f"{path}.function.arguments")
    return ToolCall(name, arguments, id=_text(item, "id", path) or "")


def _reasoning(item: Mapping[str, Any], path: str) -> str | None:
    given = {key: text for key in _REASONING if (text := _text(item, key, path))}
    if len(set(given.values())) > 1:
        raise _bad(f"{path!r} has {' and '.join(map(repr, given))}, which differ; expected one of them")
    return next(iter(given.values()), None)


def _trained(item: Mapping[str, Any], role: str, path: str) -> bool:
    """Whether a message is in the loss of fine-tuning, as its weight says."""
    trained = True
    for key in _TRAINED:
        value = item.get(key)
        if value is None:
            continue
        if not isinstance(value, int | float) or value not in (0, 1):
            raise _bad(f"'{path}.{key}' is {short(value)}, expected 0 or 1")
        if role != "assistant" and value:
            remark(f"message.{key}", f"'{path}.{key}' has no effect: only what the assistant says is in the loss")
        trained = trained and (bool(value) or role != "assistant")
    return trained


def _remark_on_keys(item: Mapping[str, Any], role: str, path: str) -> None:
    for key, value in item.items():
        if value is None or (isinstance(value, str | Sequence | Mapping) and not value):
            continue
        if key not in _KNOWN:
            remark(f"message.{key}", f"'{path}.{key}' has no effect: it is no key of a message that is read")
        elif key == "tool_call_id" and role != "tool":
            remark("message.tool_call_id", f"'{path}.tool_call_id' has no effect in a message of the role {role!r}")
        elif key in _REASONING and role != "assistant":
            remark(f"message.{key}", f"'{path}.{key}' has no effect in a message of the role {role!r}")


def _content(value: Any, path: str) -> str:
    """Text, nothing, or a list of parts, in which an image is `<image>`."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return "".join(_parts(value, path))
    raise _bad(f"{path!r} is {short(value)}, expected a text")


def _parts(parts: Sequence[Any], path: str) -> Iterator[str]:
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "image" and any(value is not None for key, value in part.items() if key not in ("type", "text")):
            raise DataError(
                f"'{path}[{index}]' is {short(part)}, expected {{'type': 'image'}} alone",
                hint="Put the image into the row's column `images`, in the order of these parts.",
            )
        if kind == "image":
            yield IMAGE_MARK
        elif kind == "text" and isinstance(part.get("text"), str):
            yield part["text"]
        else:
            raise _bad(f"'{path}[{index}]' is {short(part)}, expected a part of type 'text' or 'image'")


def _text(item: Mapping[str, Any], key: str, path: str) -> str | None:
    value = item.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _bad(f"'{path}.{key}' is {short(value)}, expected a text")


def read_object(value: Any, path: str) -> dict[str, Any]:
    """An object, or one as JSON text; empty for null and for an empty text. Raises DataError, which names the place
    within the row."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    read = _json(value, path, "an object") if isinstance(value, str) else value
    if not isinstance(read, Mapping):
        raise _bad(f"{path!r} is {short(value)}, expected an object")
    return dict(read)


def _json(text: str, path: str, expected: str) -> Any:
    try:
        return bounded_json.loads(text)
    except ValueError as error:
        raise _bad(f"{path!r} is {short(text)}, expected {expected} or its JSON text: {error}") from None


def short(value: Any) -> str:
    """A value for a message, cut to 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _misplaced_calls(role: str, path: str) -> DataError:
    return _bad(f"'{path}.tool_calls': only an assistant message has calls, this one is from {role!r}")


def _bad(message: str) -> DataError:
    return DataError(message)
