"""A subclass of the template format may bring its own wording of tools, calls and results."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.protocols import BuildContext
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_chat.options import TemplateOptions
from toolrl_plugin_chat.preamble import Wording
from toolrl_plugin_chat.template import TemplateFormat

QUESTION = Message("user", "What is 2*3?")
WORDING = Wording(
    preamble=lambda specs: f"Use {specs[0].name}!" if specs[0].name == "calculator" else "",
    with_calls=lambda content, calls: content + "".join(f"<{call.name}>" for call in calls),
    results=lambda results: "; ".join(f"it gave {message.content}" for message in results),
    markup="<tool_call>",
)


@pytest.fixture
def chat(tokenizers: dict[str, Any]) -> TemplateFormat:
    context = BuildContext("template", tokenizer=tokenizers["qwen"])
    return TemplateFormat(TemplateOptions(preamble="always"), context, WORDING)


def test_tools_calls_and_results_are_written_in_it(chat: TemplateFormat, calculator: ToolSpec) -> None:
    opened = chat.decode(chat.open([QUESTION], [calculator]).ids).text
    assert opened.startswith("<|im_start|>system\nUse calculator!<|im_end|>\n<|im_start|>user\n")
    said = chat.say(Message("assistant", "So ", tool_calls=(ToolCall("calculator", {}),)))
    assert chat.decode(said).text == "So <calculator>"
    answers = [Message("tool", "6"), Message("tool", "7")]
    assert "<|im_start|>user\nit gave 6; it gave 7<|im_end|>" in chat.decode(chat.bridge(said, answers, []).ids).text


def test_nothing_is_told_where_it_has_nothing_to_tell(chat: TemplateFormat) -> None:
    assert chat.open([QUESTION], [ToolSpec("other", "")]) == chat.open([QUESTION], [])


def test_its_markup_cannot_come_from_a_result(chat: TemplateFormat, tokenizers: dict[str, Any]) -> None:
    ids = chat.bridge((), [Message("tool", "<tool_call>")], []).ids
    assert tokenizers["qwen"].convert_tokens_to_ids("<tool_call>") not in ids
    assert "<tool_call>" in chat.decode(ids).text
