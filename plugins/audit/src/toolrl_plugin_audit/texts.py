"""Tool calls, answers and cut-off ends, as texts and messages of any of the systems show them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolrl_plugin_audit.rows import MENTIONED, Call

_DIALECTS = (
    (r"<tool_call>(?P<a>.*?)</tool_call>", r"<tool_response>"),
    (r"<search>(?P<b>.*?)</search>", r"<information>"),
    (r"<code>(?P<c>.*?)</code>", r"<interpreter>"),
    (r"<python>(?P<d>.*?)</python>", r"<output>"),
    (r"```python\n(?P<e>.*?)```", r"```output"),
)
_CALL_OR_ANSWER = re.compile(
    "|".join(f"(?:{call})|(?P<answer{number}>{answer})" for number, (call, answer) in enumerate(_DIALECTS)), re.DOTALL
)
_THINKING = re.compile(r"<think>.*?</think>", re.DOTALL)
_OPENED = re.compile(r"\s*(?P<a><think>)|.*(?P<b><tool_call>)\s*\{|.*(?P<c><search>)", re.DOTALL)
_ENDS = (
    "<|im_end|>", "<|endoftext|>", "</s>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "<eos>", "<turn|>",
    "<|return|>", "<|user|>", "<|observation|>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
)  # fmt: skip
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_FUNCTION = re.compile(r'"type"\s*:\s*"function".*?"name"\s*:\s*"([^"]+)"', re.DOTALL)
_MENTIONED = re.compile(
    r"\b(?:use|using|call|calling|access to|available|following|provided|with)\b[^.\n]{0,40}"
    r"\b(?:tools?|function[- ]call(?:s|ing)?)\b",
    re.IGNORECASE,
)
_ANSWERS = ("tool", "function", "ipython", "environment")


def calls_in_text(text: str) -> tuple[list[Call], int]:
    """The calls in a response as text, and the stretches of it that tools wrote.

    Of dialects in which nothing is answered only `<tool_call>` and `<search>` count: a block of code alone is no call.
    """
    if "<" not in text and "```" not in text:
        return [], 0
    text = _THINKING.sub("", text)
    calls: list[Call] = []
    waiting: list[Call] = []
    blocks, after_answer = 0, False
    dialects = {number for number, (_, answer) in enumerate(_DIALECTS) if number < 2 or re.search(answer, text)}
    end = 0
    for match in _CALL_OR_ANSWER.finditer(text):
        kind = match.lastgroup or ""
        if kind.startswith("answer"):
            blocks += not after_answer
            after_answer = True
            if waiting:
                waiting.pop(0).answered = True
        elif "abcde".index(kind) in dialects and (kind != "a" or _is_call(match[kind])):
            if after_answer:
                waiting = []
            after_answer = False
            name = _NAME.search(match[kind])
            calls.append(Call(name[1] if name else ("search" if kind == "b" else None), match[0], answered=False))
            waiting.append(calls[-1])
            end = match.end()
    for call in waiting:
        call.last = not text[end:].strip(" \n") or text[end:].strip() in (
            "<|im_end|>",
            "<|endoftext|>",
            "</s>",
            "assistant",
        )
    return calls, blocks


def unclosed(text: str) -> str | None:
    """How a text shows that it was cut off: thinking, a call or a query that it began last and didn't close."""
    text = _THINKING.sub("", text) if "<" in text else ""
    match = _OPENED.match(text)
    if match is not None and f"</{match[match.lastgroup or 0][1:]}" not in text[match.end() :]:
        return f"it ends inside {match[match.lastgroup or 0]}"
    return None


def _is_call(text: str) -> bool:
    """Whether a tagged text is a call that any parser reads; what a random model puts into tags isn't."""
    call = _json(text)
    return "<function=" in text or (isinstance(call, dict) and isinstance(call.get("name"), str))


def is_marked(text: str) -> bool:
    """Whether a text ends in an end-of-sequence token."""
    return text.rstrip().endswith(_ENDS)


def tools_in_prompt(text: str) -> tuple[str, ...] | None:
    """The tools that a prompt lists, without names where it only speaks of tools; None where it doesn't."""
    match = _TOOLS.search(text)
    if match is None or not match[1].strip():
        return MENTIONED if _MENTIONED.search(text) else None
    names = _FUNCTION.findall(match[1]) or [
        str(it["name"]) for it in map(_json, match[1].strip().splitlines()) if isinstance(it, dict) and "name" in it
    ]
    return tuple(dict.fromkeys(names)) or ("",)


def tool_names(value: Any) -> tuple[str, ...] | None:
    """The names in a list of tool schemas, in any of their forms; None where there are none."""
    value = as_json(value)
    names = []
    for tool in value if isinstance(value, Sequence) and not isinstance(value, str) else ():
        tool = _json(tool) if isinstance(tool, str) and tool.startswith("{") else tool
        inner = tool.get("function") or tool if isinstance(tool, Mapping) else tool
        name = inner.get("name") if isinstance(inner, Mapping) else inner
        if isinstance(name, str):
            names.append(name)
    return tuple(dict.fromkeys(names)) or None


def as_json(text: Any) -> Any:
    """A text's JSON, None where it holds none; what isn't a text as it is."""
    return _json(text) if isinstance(text, str) else text


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def content(message: Mapping[str, Any]) -> str:
    """A message's text."""
    value = message.get("content")
    if isinstance(value, str) or value is None:
        return value or ""
    parts = value if isinstance(value, Iterable) else [value]
    return "".join(str(part.get("text") or "") if isinstance(part, Mapping) else str(part) for part in parts)


def calls_in_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Call], int]:
    """The calls of assistant messages, and the stretches of messages by tools."""
    calls: list[Call] = []
    blocks, before = 0, ""
    for number, message in enumerate(messages):
        role = str(message.get("role"))
        answers = is_answer(message)
        blocks += answers and before != "answer"
        before = "answer" if answers else role
        if role != "assistant":
            continue
        made = list(_calls_of(message))
        following = []
        for later in messages[number + 1 :]:
            if later.get("role") == "assistant":
                break
            if is_answer(later):
                following.append(later)
        last = not any(later.get("role") == "assistant" for later in messages[number + 1 :])
        known = {str(it["tool_call_id"]) for it in following if it.get("tool_call_id")}
        for place, (identifier, name, text) in enumerate(made):
            by_id = identifier and len(known) == len(following) and known
            answered = identifier in known if by_id else place < len(following)
            calls.append(Call(name, text, answered, last))
    return calls, blocks


def is_answer(message: Mapping[str, Any]) -> bool:
    """Whether tools wrote a message."""
    return message.get("role") in _ANSWERS or (message.get("role") == "user" and "<tool_response>" in content(message))


def _calls_of(message: Mapping[str, Any]) -> Iterator[tuple[str | None, str | None, str]]:
    """Id, name and text of each call of a message."""
    made = message.get("tool_calls")
    for call in made if made is not None else ():
        call = as_json(call)
        if not isinstance(call, Mapping):
            continue
        inner = call.get("function") or call
        inner = inner if isinstance(inner, Mapping) else {}
        name, arguments = inner.get("name"), inner.get("arguments")
        shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
        yield call.get("id"), name, f"{name}({shown})"


def transcript_end(messages: Sequence[Mapping[str, Any]]) -> str:
    """The text of the last message, where the model wrote it."""
    return content(messages[-1]) if messages and messages[-1].get("role") == "assistant" else ""
