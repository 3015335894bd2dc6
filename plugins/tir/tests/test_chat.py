"""What the model is told, and how calls and results are written into messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from toolrl.errors import ChatFormatError
from toolrl.protocols import BuildContext
from toolrl.types import CallError, CallRecord, Markers, Media, Message, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_tir.chat import TirFormat, TorlFormat
from toolrl_plugin_tir.options import TirFormatOptions, TorlOptions
from toolrl_plugin_tir.parser import TirParser

PYTHON = ToolSpec("python", "Runs Python\nin a fresh process.")
CALCULATOR = ToolSpec("calculator", "Evaluates.")
SEARCH = ToolSpec("search", "Searches.")
QUESTION = Message("user", "What is 6*7?")
RUN = ToolCall("python", {"code": "print(6*7)"})


def tir(tokenizer: Any, **options: Any) -> TirFormat:
    return TirFormat(TirFormatOptions(**options), BuildContext("tir", where="env.chat_format", tokenizer=tokenizer))


def torl(tokenizer: Any, **options: Any) -> TorlFormat:
    return TorlFormat(TorlOptions(**options), BuildContext("torl", where="env.chat_format", tokenizer=tokenizer))


def opened(chat: Any, tools: Any, *messages: Message) -> str:
    return chat.decode(chat.open(messages or [QUESTION], tools).ids).text


def test_the_system_message_tells_of_the_tools_that_are_there(tokenizer: Any) -> None:
    chat = tir(tokenizer)
    told = opened(chat, [PYTHON])
    assert "python: Runs Python in a fresh process. Write code in a block" in told
    assert "```python\nprint(2**10)\n```" in told
    assert "```output" in told
    assert "calculator" not in told
    told = opened(chat, [CALCULATOR])
    assert "calculator: Evaluates. Write an expression in tags: <calculator>3 * (4 - 1)</calculator>" in told
    assert "python" not in told
    both = opened(chat, [CALCULATOR, PYTHON])
    assert both.index("calculator: ") < both.index("python: ")
    assert told.startswith("<|system|># Tools")  # the template was given no tools
    assert opened(chat, []) == "<|user|>What is 6*7?<|end|><|assistant|>"


def test_what_the_preamble_shows_is_what_the_parser_reads(tokenizer: Any) -> None:
    items = TirParser().parse(opened(tir(tokenizer), [PYTHON, CALCULATOR]), tools=()).items
    assert [item.arguments for item in items] == [{"code": "print(2**10)"}, {"expression": "3 * (4 - 1)"}]


def test_own_wording(tokenizer: Any) -> None:
    assert opened(tir(tokenizer, preamble_text="You have {tools}."), [CALCULATOR]).startswith(
        "<|system|>You have calculator: Evaluates. Write an expression in tags: "
        "<calculator>3 * (4 - 1)</calculator>.<|end|>"
    )
    assert opened(tir(tokenizer, preamble_text="Use programs."), [PYTHON]).startswith("<|system|>Use programs.<|end|>")
    assert opened(tir(tokenizer, preamble_text=""), [PYTHON]) == "<|user|>What is 6*7?<|end|><|assistant|>"


UNIT = ToolSpec(
    "unit",
    "Converts.",
    {"type": "object", "properties": {"text": {"type": "string"}, "to": {"type": "string"}}, "required": ["text"]},
)
BASH = replace(UNIT, name="bash", markers=Markers(("[sh]", "<sh>"), ("[/sh]", "</sh>")))


def test_other_tools_are_told_with_their_markers(tokenizer: Any) -> None:
    told = opened(tir(tokenizer), [PYTHON, UNIT, BASH, SEARCH])
    assert "unit: Converts. Write <unit>TEXT</unit>" in told
    assert "bash: Converts. Write [sh]TEXT[/sh]" in told
    assert "search: Searches. Write <search></search>" in told


def test_two_tools_with_one_marker_are_refused(tokenizer: Any) -> None:
    same = replace(BASH, name="shell")
    for chat in (tir(tokenizer), torl(tokenizer)):
        with pytest.raises(ChatFormatError, match=r"'bash' and of 'shell' both begin with '\[sh\]'") as caught:
            chat.open([QUESTION], [BASH, same])
        assert caught.value.where == "env.chat_format"


def test_demonstrations_call_other_tools(tokenizer: Any) -> None:
    said = Message("assistant", "", tool_calls=(ToolCall("bash", {"text": "ls"}), ToolCall("unit", {"text": "1 km"})))
    for chat in (tir(tokenizer), torl(tokenizer)):
        chat.open([QUESTION], [UNIT, BASH])
        text = chat.decode(chat.say(said)).text
        assert text.strip() == "[sh]ls[/sh]\n<unit>1 km</unit>"
        items = TirParser().parse(text, tools=[UNIT, BASH]).items
        assert [item.arguments for item in items] == [{"text": "ls"}, {"text": "1 km"}]
        several = ToolCall("look", {"query": "é", "k": 3})
        assert chat.decode(chat.say(Message("assistant", "", tool_calls=(several,)))).text.strip() == (
            '<look>{"query": "é", "k": 3}</look>'
        )


def test_calls_and_results_of_demonstrations(tokenizer: Any) -> None:
    said = Message("assistant", "Let me see.", tool_calls=(RUN, ToolCall("calculator", {"expression": "6*7"})))
    text = "Let me see.\n```python\nprint(6*7)\n```\n<calculator>6*7</calculator>"
    results = [Message("tool", "42", name="python"), Message("tool", "```\nx", name="calculator")]
    answers = "```output\n42\n```\n````output\n```\nx\n````"
    chat = tir(tokenizer)
    assert chat.decode(chat.say(said)).text == text
    assert (
        chat.decode(chat.bridge(chat.say(said), results, [PYTHON]).ids).text == f"<|user|>{answers}<|end|><|assistant|>"
    )
    chat = torl(tokenizer)
    assert chat.decode(chat.say(said)).text == f" {text}"
    assert chat.decode(chat.bridge(chat.say(said), results, [PYTHON]).ids).text == f"\n{answers}\nAssistant:"
    assert TirParser().parse(text, tools=()).items[0].arguments == RUN.arguments


def test_a_call_whose_code_holds_a_fence(tokenizer: Any) -> None:
    code = "s = '''\n```\n'''"
    chat = tir(tokenizer)
    text = chat.decode(chat.say(Message("assistant", "", tool_calls=(ToolCall("python", {"code": code}),)))).text
    assert TirParser().parse(text, tools=()).items[0].arguments == {"code": code}


@pytest.mark.parametrize(
    "call",
    [ToolCall("python", {"code": 1}), ToolCall("python", {"code": "x", "n": 1})],
)
def test_calls_without_a_form_are_refused(tokenizer: Any, call: ToolCall) -> None:
    for chat in (tir(tokenizer), torl(tokenizer)):
        with pytest.raises(ChatFormatError, match="has no form in this syntax"):
            chat.say(Message("assistant", "", tool_calls=(call,)))


def test_torl_prompt(tokenizer: Any) -> None:
    assert opened(torl(tokenizer), [PYTHON]) == (
        "A conversation between User and Assistant. The user asks a question, and the Assistant solves it.\n"
        "User: Please integrate natural language reasoning with programs to solve the problem above, and put your "
        "final answer within \\boxed{}.\nWhat is 6*7?\nAssistant:"
    )


def test_torl_options(tokenizer: Any) -> None:
    chat = torl(tokenizer, introduction="", instruction="", turn_end=["\n"])
    assert opened(chat, []) == "User: What is 6*7?\nAssistant:"
    assert ord("\n") in chat.end_ids
    with pytest.raises(ChatFormatError, match="beginning-of-sequence"):
        torl(tokenizer, add_bos=True)
    told = opened(torl(tokenizer, instruction="Compute."), [], Message("system", "Be brief."), QUESTION)
    assert told == "Be brief.\nUser: Compute.\nWhat is 6*7?\nAssistant:"


def test_torl_conversations_end_turns_as_they_were_sampled(tokenizer: Any) -> None:
    chat = torl(tokenizer, instruction="")
    told = opened(chat, [], QUESTION, Message("assistant", "42"), Message("user", "Sure?"))
    assert told.endswith("User: What is 6*7?\nAssistant: 42<|end|>\nUser: Sure?\nAssistant:")


def test_special_tokens_in_results_are_plain_text(tokenizer: Any) -> None:
    for chat in (tir(tokenizer), torl(tokenizer)):
        for ids in (chat.inline("<|end|>"), chat.bridge((), [Message("tool", "<|end|>")], [PYTHON]).ids[1:]):
            assert chat.decode((*ids, ord("x"))).text.count("<|end|>") - ids.count(tokenizer.eos_token_id) == 1


# Results inside the turn.


def render(*results: ToolResult) -> str:
    items = [ToolCall("python", {}), CallError("empty", "Empty.")]
    return TirParser().render_results([CallRecord(items[n % 2], result) for n, result in enumerate(results)])


def test_a_fence_for_each_item() -> None:
    assert render(ToolResult("42")) == "\n```output\n42\n```\n"
    assert render(ToolResult("42"), ToolResult("Empty.", error="malformed")) == (
        "\n```output\n42\n```\n\n```output\nEmpty.\n```\n"
    )


@pytest.mark.parametrize(
    ("text", "fence"),
    [("a```b", "```"), ("```", "````"), ("x\n  `````python\n```", "``````"), ("~~~", "```"), ("``", "```")],
)
def test_a_longer_fence_around_a_text_that_holds_one(text: str, fence: str) -> None:
    assert render(ToolResult(text)) == f"\n{fence}output\n{text}\n{fence}\n"


def test_media_are_named() -> None:
    image = Media("image", "x.png")
    assert "(left out, since only text can be shown here: image, image)" in render(
        ToolResult("a", media=(image, image))
    )


def test_the_parser_reads_a_result_as_content() -> None:
    text = render(ToolResult("```python\nx\n```\n<calculator>1</calculator>"))
    assert TirParser().parse(text, tools=()).items == ()
