"""The chat format: ends of turns, thinking, tools, native ids, what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.errors import ChatFormatError
from toolrl.protocols import ChecksTools
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_renderers.families import FAMILIES
from toolrl_testing.checks import chat_formats

every = pytest.mark.parametrize("name", FAMILIES)
LAWFUL = {
    "qwen3": {"enable_thinking": False},
    "qwen3.5": {"enable_thinking": False},
    "glm-5": {"enable_thinking": False},
    "laguna-xs.2": {},
    "kimi-k2": {},
    "llama-3": {},
    "inkling": {},
    "gemma4": {},
    "hy3": {},
    "deepseek-v3": {},
    "deepseek-v4": {},
}
"""Families and settings without thinking, in which answers of any conversation stay as they were."""


@pytest.mark.parametrize("name", LAWFUL)
def test_laws(name: str, format_of: Any) -> None:
    chat_formats.check_laws(format_of(name, **LAWFUL[name]))


@every
def test_a_missing_end_mark_is_supplied(name: str, format_of: Any, look: ToolSpec) -> None:
    """A turn that was cut off, or that a string stopped, goes on like one that ended."""
    chat = format_of(name)
    thinks = "So." if chat.open([Message("user", "x")], (look,)).in_thinking else None
    call = ToolCall("look", {"query": "x"}, id="functions.look:0")
    result = Message("tool", "42", tool_call_id=call.id, name="look")
    said = chat.say(Message("assistant", "", tool_calls=(call,), reasoning=thinks))
    assert said[-1] in chat.end_ids
    whole = chat.bridge(said, [result], (look,)).ids
    assert chat.bridge(said[:-1], [result], (look,)).ids == (said[-1], *whole)
    # A turn that a string stopped before the call was written to its end, and one without any token.
    assert chat.bridge(said[:-3], [result], (look,)).ids == (said[-1], *whole)
    assert chat.bridge((), [result], (look,)).ids == (said[-1], *whole)


@every
def test_another_end_mark_than_the_usual(name: str, format_of: Any, look: ToolSpec) -> None:
    """It isn't doubled, but for marks that begin what follows."""
    chat = format_of(name)
    answer = chat.say(Message("assistant", "Yes."))
    question = [Message("user", "And?")]
    usual = chat.bridge(answer, question, ()).ids
    headers = {chat._codec.added[text] for text in FAMILIES[name].headers if text in chat._codec.added}
    for end in chat.end_ids:
        ids = chat.bridge((*answer[:-1], end), question, ()).ids
        if end == answer[-1] or answer[-1] not in headers:
            assert ids == usual
        else:
            assert ids == (answer[-1], *usual)


@every
def test_a_system_message_in_between(name: str, format_of: Any, look: ToolSpec) -> None:
    """It is shown or refused, never lost."""
    messages = [Message("system", "Be brief from now on."), Message("user", "And?")]
    try:
        ids = format_of(name).bridge((), messages, (look,)).ids
    except ChatFormatError:
        return
    assert "Be brief from now on." in format_of(name).decode(ids).text


@every
def test_thinking_that_never_closed_goes_on(name: str, format_of: Any, look: ToolSpec) -> None:
    """The library's own bridge gives nothing for it; the tokens stay as they are."""
    chat = format_of(name)
    ids = (*chat.inline("I think and think"), chat.say(Message("assistant", "x"))[-1])
    assert chat.bridge(ids, [Message("user", "And?")], (look,)).ids


@every
def test_the_model_is_told_of_its_tools(name: str, format_of: Any, look: ToolSpec) -> None:
    chat = format_of(name)
    text = chat.decode(chat.open([Message("system", "Be brief."), Message("user", "x")], (look,)).ids).text
    assert "look" in text
    assert "What to look for." in text
    assert "Be brief." in text
    assert isinstance(chat, ChecksTools)
    chat.check((look,))
    chat.check(())


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-r1"])
def test_a_preamble_where_the_renderer_ignores_tools(name: str, format_of: Any, look: ToolSpec) -> None:
    chat = format_of(name)
    prompt = chat.open([Message("user", "x")], (look,))
    text = chat.decode(prompt.ids).text
    assert "<｜tool▁sep｜>TOOL" in text
    assert any("preamble" in remark for remark in chat.check((look,)))
    assert "TOOL" not in chat.decode(chat.open([Message("user", "x")], ()).ids).text


@pytest.mark.parametrize("name", ["kimi-k2", "kimi-k2.5"])
def test_results_repeat_the_ids_that_the_model_gave(name: str, format_of: Any, look: ToolSpec) -> None:
    """Kimi writes `functions.NAME:INDEX` into a call and reads it in the result; toolrl's own ids are nothing to it."""
    chat = format_of(name)
    calls = tuple(ToolCall("look", {"query": str(n)}, id=f"functions.look:{n}") for n in (7, 8))
    said = chat.say(Message("assistant", "", tool_calls=calls))
    answers = [Message("tool", str(n), tool_call_id=f"call_{n}", name="look") for n in (1, 2)]
    text = chat.decode(chat.bridge(said, answers, (look,)).ids).text
    assert "## Return of functions.look:7\n1" in text
    assert "## Return of functions.look:8\n2" in text
    assert "call_1" not in text
    # Where the turn gave none, name and place stand in.
    text = chat.decode(chat.bridge(chat.inline("No call."), answers, (look,)).ids).text
    assert "## Return of functions.look:0\n1" in text
    assert "## Return of functions.look:1\n2" in text


def test_what_a_message_loses_is_refused(format_of: Any) -> None:
    with pytest.raises(ChatFormatError, match="drops the reasoning"):
        format_of("llama-3").say(Message("assistant", "x", reasoning="So."))
    with pytest.raises(ChatFormatError, match="drops the reasoning"):
        format_of("llama-3").say(Message("assistant", "So. Yes.", reasoning="So."))
    with pytest.raises(ChatFormatError, match="closes thinking before the model speaks"):
        format_of("qwen3", enable_thinking=False).say(Message("assistant", "x", reasoning="So."))
    with pytest.raises(ChatFormatError, match="before its end"):
        format_of("qwen3").say(Message("assistant", "x<|im_end|>y"))
    with pytest.raises(ChatFormatError, match="can't be sampled"):
        format_of("qwen3").say(Message("user", "x"))
