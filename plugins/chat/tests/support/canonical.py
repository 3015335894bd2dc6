"""Conversations, and whether they are canonical for a template: rendered whole as they came about, turn by turn.

A template's own rendering is the reference of exactness rule 3, but only where it is faithful to itself. It is for a
conversation in which

1. it takes the conversation and shows every part of every turn: text, thinking, calls;
2. the ids of each turn's prompt are a beginning of the ids of the whole;
3. a turn is shown alike when it is the last one and when others follow;
4. a turn's words stand right behind its prompt, with no further header between.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_chat.template import TemplateFormat

CALCULATOR = ToolSpec(
    "calculator",
    "Exact arithmetic.",
    {
        "type": "object",
        "properties": {"expression": {"type": "string", "description": "What to compute."}},
        "required": ["expression"],
    },
)
SEARCH = ToolSpec(
    "search",
    "Finds things: naïve, 你好.",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "description": "Words.", "enum": ["a", "ü"]},
            "n": {"type": "integer", "description": "How many."},
        },
        "required": ["query"],
    },
)


def obstacle(chat: TemplateFormat, tokenizer: Any, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> str:
    """Why a conversation isn't canonical, in a word of `REASONS` and a few more; empty where it is."""
    try:
        whole = _text(chat, messages, tools)
    except ChatFormatError:
        return "refused"
    if not chat._conversation.parallel and any(len(message.tool_calls) > 1 for message in messages):
        return "shows one call a turn"
    lost = _lost(messages, whole)
    if lost:
        return f"drops {lost}"
    ids = chat.whole(messages, tools)
    header = _header(chat, tools)
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        prompt = _text(chat, messages[:index], tools, generation_prompt=True)
        prompt_ids = chat.open(messages[:index], tools).ids
        if not whole.startswith(prompt):
            return "rewrites prompts"
        if ids[: len(prompt_ids)] != prompt_ids:
            return "merges tokens"
        behind = whole[len(prompt) :]
        if header and not prompt.endswith(header) and behind.startswith(header):
            return "adds a header"
        if message.tool_calls and behind.find(message.content) > behind.find(message.tool_calls[0].name):
            return "moves text behind calls"
        if not message.tool_calls:
            alone = _up_to_end(_text(chat, messages[: index + 1], tools), tokenizer)
            if not whole.startswith(alone):
                return "rewrites turns"
    return ""


def _text(
    chat: TemplateFormat, messages: Sequence[Message], tools: Sequence[ToolSpec], *, generation_prompt: bool = False
) -> str:
    conversation = chat._conversation
    dicts = conversation.dicts(messages, tools)
    return chat._render(dicts, conversation.native_tools(tools), generation_prompt=generation_prompt)


def _lost(messages: Sequence[Message], whole: str) -> str:
    for message in messages:
        if message.role == "assistant":
            if (message.reasoning or "").strip() not in whole:
                return "thinking"
            if message.content.strip() not in whole:
                return "text beside calls" if message.tool_calls else "text"
    return ""


def _header(chat: TemplateFormat, tools: Sequence[ToolSpec]) -> str:
    """The generation prompt behind a question."""
    question = [Message("user", "What?")]
    without = _text(chat, question, tools)
    with_prompt = _text(chat, question, tools, generation_prompt=True)
    return with_prompt[len(without) :] if with_prompt.startswith(without) else ""


def _up_to_end(text: str, tokenizer: Any) -> str:
    """Without the white space and the end-of-text token that a template writes behind a last end mark."""
    text, eos = text.rstrip(), tokenizer.eos_token
    before = text.removesuffix(eos).rstrip() if eos else text
    marks = [token.content for token in tokenizer.added_tokens_decoder.values()]
    return before if before != text and any(before.endswith(mark) for mark in marks) else text


# Conversations.


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


LETTERS = st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Co", "Cn"))
HOSTILE = ("<|im_end|>", "<|im_start|>user\n", "</tool_response>", "<think>", "</s>", "<|eot_id|>", "<turn|>", "[INST]")


def _ordinary(text: str) -> bool:
    return not any(mark in text for mark in ("<", "[", "｜"))


words = st.text(LETTERS, min_size=1, max_size=20).map(lambda text: _composed(text).strip()).filter(bool)
words = words.filter(_ordinary)
"""Text that no template trims and that holds no mark."""
leaves = st.none() | st.booleans() | st.integers(-1000, 1000) | words
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "ü", "b c"]), inner, max_size=2),
    max_leaves=4,
)
names = st.sampled_from(["calculator", "search"])
arguments = st.dictionaries(st.sampled_from(["expression", "query", "n"]), values, max_size=3)
any_results = st.just("") | st.text(LETTERS | st.sampled_from("\n\t "), max_size=30).map(_composed)
results = any_results.filter(_ordinary)
"""hypothesis draws texts that stand in the code, too, marks among them."""
hostile_results = any_results | st.lists(st.sampled_from([*HOSTILE, "x", "\n"]), max_size=4).map("".join)


@st.composite
def conversations(draw: st.DrawFn, *, hostile: bool = True) -> list[Message]:
    """One to four assistant turns, the last one an answer. Every text of a turn is told from all others by its first
    letters, so that a part that a template drops is seen."""
    turns = draw(st.integers(1, 4))
    thinks = draw(st.sampled_from(["never", "always", "always", "sometimes", "behind the last question"]))
    asked_again = draw(st.booleans())
    beside = draw(st.booleans())
    messages = [Message("system", draw(words))] if draw(st.booleans()) else []
    messages.append(Message("user", draw(words)))
    calls_made = 0
    for number in range(turns):
        last = number == turns - 1
        reasoning = f"r{number}r {draw(words)}" if thinks == "always" or _sometimes(draw, thinks) else None
        calls: tuple[ToolCall, ...] = ()
        if not last and not (asked_again and draw(st.booleans())):
            calls = tuple(
                ToolCall(
                    draw(st.sampled_from(["calculator", "search"])), draw(arguments), id=f"call_{calls_made + 1 + i}"
                )
                for i in range(draw(st.integers(1, 3)))
            )
            calls_made += len(calls)
        content = f"c{number}c {draw(words)}" if not calls or (beside and draw(st.booleans())) else ""
        messages.append(Message("assistant", content, tool_calls=calls, reasoning=reasoning))
        texts = hostile_results if hostile else results
        messages += [Message("tool", draw(texts), tool_call_id=call.id, name=call.name) for call in calls]
        if not calls and not last:
            messages.append(Message("user", draw(words)))
    if thinks == "behind the last question":
        messages = _thinking_last(messages)
    return messages


def _sometimes(draw: st.DrawFn, thinks: str) -> bool:
    return thinks == "behind the last question" or (thinks == "sometimes" and draw(st.booleans()))


def _thinking_last(messages: list[Message]) -> list[Message]:
    asked = max(index for index, message in enumerate(messages) if message.role == "user")
    return [
        Message("assistant", message.content, tool_calls=message.tool_calls)
        if message.role == "assistant" and index < asked
        else message
        for index, message in enumerate(messages)
    ]


def _call(index: int = 0) -> ToolCall:
    return ToolCall("calculator", {"expression": "2*3 é", "n": {"x": [1, "ü"]}}, id=f"call_{index + 1}")


def _result(index: int = 0, text: str = "6") -> Message:
    return Message("tool", text, tool_call_id=f"call_{index + 1}", name="calculator")


def _turn(content: str = "The answer.", reasoning: str | None = None, calls: tuple[ToolCall, ...] = ()) -> Message:
    return Message("assistant", content, tool_calls=calls, reasoning=reasoning)


_ASKED, _AGAIN, _DONE = Message("user", "What is it?"), Message("user", "Sure, é?"), _turn(reasoning="so it is")
CASES: dict[str, list[Message]] = {
    "an answer": [_ASKED, _turn()],
    "several questions": [_ASKED, _turn(), _AGAIN, _turn("Yes.")],
    "calls": [_ASKED, _turn("", None, (_call(),)), _result(), _turn("", None, (_call(1),)), _result(1), _turn()],
    "several calls in a turn": [_ASKED, _turn("", None, (_call(), _call(1))), _result(), _result(1, ""), _turn()],
    "text beside calls": [_ASKED, _turn("Let me see.", None, (_call(),)), _result(), _turn()],
}
"""What the table of families tells of: each is canonical for a template, or it isn't and why."""
THINKING: dict[str, list[Message]] = {
    "an answer": [_ASKED, _DONE],
    "several questions": [_ASKED, _turn(reasoning="one"), _AGAIN, _DONE],
    "calls": [_ASKED, _turn("", "one", (_call(),)), _result(), _turn("", "two", (_call(1),)), _result(1), _DONE],
    "several calls in a turn": [_ASKED, _turn("", "one", (_call(), _call(1))), _result(), _result(1, ""), _DONE],
    "text beside calls": [_ASKED, _turn("Let me see.", "one", (_call(),)), _result(), _DONE],
}
"""The same with thinking in every turn."""
