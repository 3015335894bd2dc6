"""Tool calls, answers and cut-off ends, as texts and messages of any of the systems show them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolrl_plugin_audit.rows import MENTIONED

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
_LAST_CALL = re.compile(r"</(?:tool_call|search)>\s*(?:<\|im_end\|>|<\|endoftext\|>|</s>|assistant)?\s*\Z")
_TOOLS = re.compile(r"<tools>(.*?)</tools>", re.DOTALL)
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_FUNCTION = re.compile(r'"type"\s*:\s*"function".*?"name"\s*:\s*"([^"]+)"', re.DOTALL)
_MENTIONED = re.compile(
    r"\b(?:use|using|call|calling|access to|available|following|provided|with)\b[^.\n]{0,40}"
    r"\b(?:tools?|function[- ]call(?:s|ing)?)\b",
    re.IGNORECASE,
)
_ANSWERS = ("tool", "function", "ipython", "environment")


def calls_in_text(text: str) -> tuple[list[str], int]:
    """The tools that a response as text calls, and the stretches of it that tools wrote.

    Of dialects in which nothing is answered only `<tool_call>` and `<search>` count: a block of code alone is no call.
    """
    if "<" not in text and "```" not in text:
        return [], 0
    text = _THINKING.sub("", text)
    calls: list[str] = []
    blocks, after_answer = 0, False
    dialects = {number for number, (_, answer) in enumerate(_DIALECTS) if number < 2 or re.search(answer, text)}
    for match in _CALL_OR_ANSWER.finditer(text):
        kind = match.lastgroup or ""
        if kind.startswith("answer"):
            blocks += not after_answer
            after_answer = True
        elif "abcde".index(kind) in dialects and (kind != "a" or _is_call(match[kind])):
            after_answer = False
            name = _NAME.search(match[kind])
            calls.append(name[1] if name else "search" if kind == "b" else "")
    return calls, blocks


def cut_off(text: str) -> str | None:
    """How a text shows that it was cut off: it ends in a call, or in thinking, a call or a query that isn't closed."""
    text = _THINKING.sub("", text) if "<" in text else ""
    match = _OPENED.match(text)
    if match is not None and f"</{match[match.lastgroup or 0][1:]}" not in text[match.end() :]:
        return f"it ends inside {match[match.lastgroup or 0]}"
    return "it ends in a call without an answer" if _LAST_CALL.search(text) else None


def transcript_cut_off(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The same of a conversation."""
    if not messages or messages[-1].get("role") != "assistant":
        return "it ends in a tool's answer" if messages and is_answer(messages[-1]) else None
    called = next(calls_of(messages[-1]), None)
    return "it ends in a call without an answer" if called else cut_off(content(messages[-1]))


def _is_call(text: str) -> bool:
    """Whether a tagged text is a call that any parser reads; what a random model puts into tags isn't."""
    call = _json(text)
    return "<function=" in text or (isinstance(call, dict) and isinstance(call.get("name"), str))


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


def calls_in_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[list[str], int]:
    """The tools that assistant messages call, and the stretches of messages by tools."""
    calls: list[str] = []
    blocks, after_answer = 0, False
    for message in messages:
        answers = is_answer(message)
        blocks += answers and not after_answer
        after_answer = answers
        if message.get("role") == "assistant":
            calls += [name for name, _ in calls_of(message)]
    return calls, blocks


def is_answer(message: Mapping[str, Any]) -> bool:
    """Whether tools wrote a message."""
    return message.get("role") in _ANSWERS or (message.get("role") == "user" and "<tool_response>" in content(message))


def calls_of(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Name and text of each call of a message."""
    made = message.get("tool_calls")
    for call in made if made is not None else ():
        call = as_json(call)
        inner = call.get("function") or call if isinstance(call, Mapping) else None
        if isinstance(inner, Mapping):
            name, arguments = inner.get("name"), inner.get("arguments")
            shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
            yield str(name or ""), f"{name}({shown})"
