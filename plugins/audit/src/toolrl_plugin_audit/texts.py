"""Tool calls, answers and cut-off ends, as texts and messages of any of the systems show them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from toolrl_plugin_audit.rows import MENTIONED

_DIALECTS = (
    ("<tool_call>", "</tool_call>", "<tool_response>"),
    ("<search>", "</search>", "<information>"),
    ("<code>", "</code>", "<interpreter>"),
    ("<python>", "</python>", "<output>"),
    ("```python\n", "```", "```output"),
)
"""The beginning and the end of a call, and the beginning of its answer."""
_TOOL_CALL, _SEARCH = 0, 1
_MARKS = re.compile(
    "|".join(
        f"(?P<call{number}>{call})|(?P<answer{number}>{answer})" for number, (call, _, answer) in enumerate(_DIALECTS)
    )
)
_OPENED = re.compile(r"\s*(?P<a><think>)|.*(?P<b><tool_call>)\s*\{|.*(?P<c><search>)", re.DOTALL)
_ENDS = ("<|im_end|>", "<|endoftext|>", "</s>", "assistant")
_NAME = re.compile(r'"name"\s*:\s*"([^"]+)"')
_FUNCTION = re.compile(r'"type"\s*:\s*"function"')
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
    text = _without_thinking(text)
    calls: list[str] = []
    blocks, after_answer = 0, False
    dialects = {number for number, (*_, answer) in enumerate(_DIALECTS) if number <= _SEARCH or answer in text}
    for number, call in _calls_and_answers(text):
        if call is None:
            blocks += not after_answer
            after_answer = True
        elif number in dialects and (number != _TOOL_CALL or _is_call(call)):
            after_answer = False
            name = _NAME.search(call)
            calls.append(name[1] if name else "search" if number == _SEARCH else "")
    return calls, blocks


# An expression such as `<think>.*?</think>` would look for the end anew from each beginning: a text of a megabyte of
# beginnings would take hours.
def _without_thinking(text: str) -> str:
    kept, place = [], 0
    while (start := text.find("<think>", place)) >= 0 and (end := text.find("</think>", start)) >= 0:
        kept.append(text[place:start])
        place = end + len("</think>")
    return "".join([*kept, text[place:]])


def _calls_and_answers(text: str) -> Iterator[tuple[int, str | None]]:
    """The dialect of each call that is closed, with its text, and of each answer, with None."""
    place, unclosed = 0, set()
    while (match := _MARKS.search(text, place)) is not None:
        place = match.end()
        kind = match.lastgroup or ""
        number = int(kind[-1])
        if kind.startswith("answer"):
            yield number, None
        elif number not in unclosed:
            closing = _DIALECTS[number][1]
            end = text.find(closing, place)
            if end < 0:
                unclosed.add(number)
            else:
                yield number, text[place:end]
                place = end + len(closing)


def cut_off(text: str) -> str | None:
    """How a text shows that it was cut off: it ends in a call, or in thinking, a call or a query that isn't closed."""
    text = _without_thinking(text) if "<" in text else ""
    match = _OPENED.match(text)
    if match is not None and f"</{match[match.lastgroup or 0][1:]}" not in text[match.end() :]:
        return f"it ends inside {match[match.lastgroup or 0]}"
    text = text.rstrip()
    ending = next((end for end in _ENDS if text.endswith(end)), "")
    ends_in_call = text.removesuffix(ending).rstrip().endswith(("</tool_call>", "</search>"))
    return "it ends in a call without an answer" if ends_in_call else None


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
    tools = text.partition("<tools>")[2]
    listed, closing, _ = tools.partition("</tools>")
    if not closing or not listed.strip():
        return MENTIONED if _MENTIONED.search(text) else None
    names = list(_function_names(listed)) or [
        str(it["name"]) for it in map(_json, listed.strip().splitlines()) if isinstance(it, dict) and "name" in it
    ]
    return tuple(dict.fromkeys(names)) or ("",)


def _function_names(text: str) -> Iterator[str]:
    """The first name after each `"type": "function"`."""
    place = 0
    while (function := _FUNCTION.search(text, place)) and (name := _NAME.search(text, function.end())):
        yield name[1]
        place = name.end()


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
