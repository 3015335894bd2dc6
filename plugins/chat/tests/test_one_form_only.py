"""Templates that render in one form only: with tools, or without them. The form that a run uses decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_chat.template import TemplateFormat

Build = Callable[..., TemplateFormat]

QUESTION = Message("user", "What is 2*3?")
CALL = ToolCall("calculator", {"expression": "2*3"}, id="call00000")
CALLING = Message("assistant", "", tool_calls=(CALL,))
RESULT = Message("tool", "6", tool_call_id="call00000", name="calculator")
ANSWER = Message("assistant", "It is 6.")

TURNS = """{% for message in messages %}<|{{ message.role }}|>{{ message.content }}CALLS<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""
CALLS = """{% for call in message.tool_calls %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"""
WITHOUT, WITH = TURNS.replace("CALLS", ""), TURNS.replace("CALLS", CALLS)

TOOLS_ONLY = {
    # As Phi-4-mini's in several public repositories: tools are joined, whether there are any, and calls are left out.
    "joined": "<|system|>{% for tool in tools %}{{ tool | tojson }}{{ ', ' if not loop.last }}{% endfor %}<|end|>"
    + WITHOUT,
    "loop": "<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>" + WITH,
    "length": "{% if tools | length > 0 %}<|system|>{{ tools | tojson }}<|end|>{% endif %}" + WITH,
    "raises": "{% if not tools %}{{ raise_exception('tools are required') }}{% endif %}{{ tools | tojson }}" + WITH,
    "attribute": "<|system|>{{ tools[0].function.name }}: {{ tools[0].function | tojson }}<|end|>" + WITHOUT,
    "parts": "{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    + WITHOUT.replace("message.content", "message.content[0].text"),
}


def decoded(tokenizers: Any, ids: Any) -> str:
    text: str = tokenizers["one_call"].decode(list(ids))
    return text


@pytest.mark.parametrize("name", TOOLS_ONLY)
def test_a_template_that_needs_tools_serves_an_environment_with_tools(
    name: str, build: Build, tokenizers: Any, calculator: ToolSpec
) -> None:
    chat = build("one_call", chat_template=TOOLS_ONLY[name])
    chat.check([calculator])
    prompt = decoded(tokenizers, chat.open([QUESTION], [calculator]).ids)
    assert "calculator" in prompt
    assert "probe_tool" not in prompt
    assert prompt.endswith("<|user|>What is 2*3?<|end|><|assistant|>")
    said = chat.say(CALLING)
    assert "probe_tool" not in decoded(tokenizers, said)
    assert '"calculator"' in decoded(tokenizers, said)
    behind = decoded(tokenizers, chat.bridge(said, [RESULT], [calculator]).ids)
    assert "6" in behind
    assert behind.endswith("<|assistant|>")
    conversation = [QUESTION, CALLING, RESULT, ANSWER]
    turns = chat.turn_by_turn(conversation, [calculator])
    assert chat.whole(conversation, [calculator])[: len(turns)] == turns


@pytest.mark.parametrize("name", TOOLS_ONLY)
def test_it_is_refused_without_tools_and_says_so(name: str, build: Build) -> None:
    chat = build("one_call", chat_template=TOOLS_ONLY[name])
    for use in (lambda: chat.check([]), lambda: chat.open([QUESTION], [])):
        with pytest.raises(ChatFormatError, match="without tools") as caught:
            use()
        assert "tools" in (caught.value.hint or "")


def test_a_template_that_shows_tools_and_no_calls_says_where_calls_stand(build: Build, calculator: ToolSpec) -> None:
    (remark,) = build("one_call", chat_template=TOOLS_ONLY["joined"]).check([calculator])
    assert "no calls" in remark


UNFIT = {
    "call depends on what follows": WITH.replace(
        "</tool_call>", "</tool_call>{{ 'x' if loop.last and not add_generation_prompt }}"
    ).replace("<|end|>", "{% if message.tool_calls and not add_generation_prompt %};{% endif %}<|end|>"),
    "another mark for the last call": WITH.replace(
        "<|end|>", "{{ ('<|call|>' if loop.last else ';') if message.tool_calls else '<|end|>' }}"
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_calls_that_can_not_be_continued_do_not_matter_without_tools(
    name: str, build: Build, tokenizers: Any, calculator: ToolSpec
) -> None:
    chat = build("one_call", chat_template="{{ tools | tojson if tools }}" + UNFIT[name])
    assert chat.check([]) == []
    assert decoded(tokenizers, chat.open([QUESTION], []).ids) == "<|user|>What is 2*3?<|end|><|assistant|>"
    assert decoded(tokenizers, chat.bridge(chat.say(ANSWER), [QUESTION], []).ids).endswith("<|end|><|assistant|>")
    uses = (
        lambda: chat.check([calculator]),
        lambda: chat.open([QUESTION], [calculator]),
        lambda: chat.open([QUESTION, CALLING, RESULT], []),
        lambda: chat.say(CALLING),
    )
    for use in uses:
        with pytest.raises(ChatFormatError, match="can't be continued turn by turn"):
            use()


def test_a_template_that_refuses_tools_serves_an_environment_without(build: Build, calculator: ToolSpec) -> None:
    refuses = "{% if tools %}{{ raise_exception('this model has no tools') }}{% endif %}" + WITHOUT
    chat = build("one_call", chat_template=refuses)
    assert chat.check([]) == []
    assert any("ignores tools" in remark for remark in chat.check([calculator]))
