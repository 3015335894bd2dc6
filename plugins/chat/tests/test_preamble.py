"""Options of the template format, and toolrl's own preamble."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.errors import ChatFormatError
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_chat.template import TemplateFormat

Build = Callable[..., TemplateFormat]

CALL = ToolCall("calculator", {"expression": "2*3"}, id="call00000")
RESULT = Message("tool", "6", tool_call_id="call00000", name="calculator")
QUESTION = Message("user", "What is 2*3?")


def opened(build: Build, tokenizers: Any, name: str, tools: list[ToolSpec], **options: Any) -> str:
    return str(tokenizers[name].decode(build(name, **options).open([QUESTION], tools).ids))


def test_a_template_that_ignores_tools_gets_the_preamble(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    text = opened(build, tokenizers, "smollm", [calculator])
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert json.dumps(calculator.as_function()) in text
    assert build("smollm").check([calculator]) == [
        "the chat template ignores tools; toolrl's own preamble describes them"
    ]
    assert "Tools" not in opened(build, tokenizers, "smollm", [])


def test_without_a_system_role_it_goes_before_the_question(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    text = opened(build, tokenizers, "strict", [calculator])
    assert text.startswith("<|bos|><|user|>\n# Tools\n")
    assert text.endswith("\n\nWhat is 2*3?<|end|>\n<|assistant|>\n")
    with pytest.raises(ChatFormatError, match="no place to tell the model of its tools"):
        build("strict").open([Message("assistant", "Hi")], [calculator])


def test_a_system_prompt_without_a_system_role(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    """It stands before the user's first words, and the preamble between them; said before the run."""
    chat, messages = build("strict"), [Message("system", "Be brief."), QUESTION]
    assert tokenizers["strict"].decode(chat.open(messages, []).ids) == (
        "<|bos|><|user|>\nBe brief.\n\nWhat is 2*3?<|end|>\n<|assistant|>\n"
    )
    text = tokenizers["strict"].decode(chat.open(messages, [calculator]).ids)
    assert text.startswith("<|bos|><|user|>\nBe brief.\n\n# Tools\n")
    assert text.endswith("\n\nWhat is 2*3?<|end|>\n<|assistant|>\n")
    assert "no system message" in chat.check([])[0]
    answered = [*messages, Message("assistant", "6"), Message("user", "Sure?"), Message("assistant", "Yes.")]
    ids, whole = chat.turn_by_turn(answered, [calculator]), chat.whole(answered, [calculator])
    assert whole[: len(ids)] == ids
    with pytest.raises(ChatFormatError, match="Role system not supported"):
        chat.open([Message("system", "Be brief."), Message("assistant", "Hi"), QUESTION], [])


def test_own_calls_and_results(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    chat, tokenizer = build("smollm"), tokenizers["smollm"]
    said = chat.say(Message("assistant", "Let me see.", tool_calls=(CALL, CALL)))
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2*3"}}\n</tool_call>'
    assert tokenizer.decode(said) == f"Let me see.\n{call}\n{call}<|im_end|>"
    assert tokenizer.decode(chat.bridge(said, [RESULT, RESULT], [calculator]).ids) == (
        "\n<|im_start|>user\n<tool_response>\n6\n</tool_response>\n<tool_response>\n6\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_preamble_always(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    text = opened(build, tokenizers, "qwen", [calculator], preamble="always")
    assert "You may call one or more functions" in text
    assert "You may call" not in opened(build, tokenizers, "qwen", [calculator])


def test_preamble_never(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    assert "calculator" not in opened(build, tokenizers, "smollm", [calculator], preamble="never")
    assert "calculator" in opened(build, tokenizers, "qwen", [calculator], preamble="never")
    # Calls and results still have a form.
    said = build("smollm", preamble="never").say(Message("assistant", "", tool_calls=(CALL,)))
    assert "<tool_call>" in tokenizers["smollm"].decode(said)


def test_preamble_style_short(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    full = build("smollm").open([QUESTION], [calculator]).ids
    short = build("smollm", preamble_style="short").open([QUESTION], [calculator]).ids
    assert "calculator(expression: string): Exact arithmetic." in tokenizers["smollm"].decode(short)
    assert len(short) < len(full) / 2


def test_tool_role(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    def bridged(name: str, role: str) -> str:
        return str(tokenizers[name].decode(build(name, tool_role=role).bridge((), [RESULT], [calculator]).ids))

    assert "<|im_start|>tool\n6<|im_end|>" in bridged("smollm", "tool")
    assert bridged("smollm", "auto") == bridged("smollm", "user")
    assert "<|observation|>" in bridged("headers", "auto")
    assert "<|user|>\n<tool_response>\n6\n</tool_response>" in bridged("headers", "user")
    with pytest.raises(ChatFormatError, match="tool_role is 'tool'"):
        build("strict", tool_role="tool")


def test_template_kwargs(build: Build, tokenizers: Any) -> None:
    text = opened(build, tokenizers, "thinking", [], template_kwargs={"enable_thinking": False})
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert opened(build, tokenizers, "thinking", []).endswith("<|im_start|>assistant\n")


def test_chat_template_as_text_and_as_file(build: Build, tokenizers: Any, tmp_path: Path) -> None:
    source = tokenizers["smollm"].chat_template
    path = tmp_path / "mine.jinja"
    path.write_text(source)
    expected = opened(build, tokenizers, "smollm", [])
    assert opened(build, tokenizers, "qwen", [], chat_template=source) == expected
    assert opened(build, tokenizers, "qwen", [], chat_template=str(path)) == expected
    with pytest.raises(ChatFormatError, match=r"nowhere\.jinja' can't be read"):
        build("qwen", chat_template=str(tmp_path / "nowhere.jinja"))
