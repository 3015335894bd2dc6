"""The template format on templates of every kind: exactness rule 3, bridges, thinking, and templates it must refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from canonical import CALCULATOR, SEARCH, conversations, obstacle
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from toolrl.chat.buffer import TokenBuffer
from toolrl.errors import ChatFormatError
from toolrl.protocols import BuildContext
from toolrl.types import Message, ToolCall, ToolSpec
from toolrl_plugin_chat.template import TemplateFormat

Build = Callable[..., TemplateFormat]

CANONICAL = ["qwen", "thinking", "smollm", "headers", "one_call", "strict", "parts"]
"""Templates that show a whole conversation as it came about."""
USABLE = [*CANONICAL, "opened"]
CALL = ToolCall("calculator", {"expression": "2*3"}, id="call00000")
RESULT = Message("tool", "6", tool_call_id="call00000", name="calculator")


def own_ids(chat: TemplateFormat, tokenizer: Any, messages: list[Message], tools: list[ToolSpec]) -> tuple[int, ...]:
    """What transformers itself makes of the dicts that the template is given."""
    conversation = chat._conversation
    dicts = conversation.dicts(messages, tools)
    encoded = tokenizer.apply_chat_template(dicts, tools=conversation.native_tools(tools), return_dict=True)
    return tuple(encoded["input_ids"])


@pytest.mark.parametrize("name", CANONICAL)
@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(messages=conversations(hostile=False), tools=st.sampled_from([[CALCULATOR], [], [CALCULATOR, SEARCH]]))
def test_turn_by_turn_equals_the_whole(
    name: str, messages: list[Message], tools: list[ToolSpec], build: Build, tokenizers: Any
) -> None:
    chat = build(name)
    assume(not obstacle(chat, tokenizers[name], messages, tools))
    whole = own_ids(chat, tokenizers[name], messages, tools)
    assert chat.whole(messages, tools) == whole
    ids = chat.turn_by_turn(messages, tools)
    if name == "headers":
        # The template stops before the header that a model samples to end its turn.
        assert ids[:-1] == whole
    else:
        assert whole[: len(ids)] == ids
        assert tokenizers[name].decode(whole[len(ids) :]).strip() == ""


@pytest.mark.parametrize("name", USABLE)
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(data=st.data())
def test_sampled_ids_stay_whatever_they_are(name: str, data: st.DataObject, build: Build, calculator: ToolSpec) -> None:
    """Rules 1 and 2 with a model that samples anything: the next prompt is the last one, the sample, the bridge; and
    the bridge doesn't depend on what was sampled, but for the end mark."""
    chat = build(name)
    buffer = TokenBuffer()
    buffer.prompt(chat.open([Message("user", "What is 2*3?")], [calculator]).ids)
    answers = [
        [RESULT],
        [RESULT, Message("tool", "", tool_call_id="call00001", name="search")],
        [Message("user", "No?")],
    ]
    for _ in range(3):
        sampled = data.draw(st.lists(st.integers(0, 620), max_size=6))
        messages = data.draw(st.sampled_from(answers))
        before = buffer.ids
        buffer.sampled(sampled, [-1.0] * len(sampled), [0] * len(sampled))
        bridge = chat.bridge(sampled, messages, [calculator]).ids
        buffer.given(bridge)
        assert buffer.ids == before + tuple(sampled) + bridge
        without = chat.bridge((), messages, [calculator]).ids
        if not sampled or sampled[-1] not in chat.end_ids:
            assert bridge == without
        else:
            assert bridge in (without, without[1:])
    buffer.check()


@pytest.mark.parametrize("name", [name for name in USABLE if name != "headers"])
def test_a_turn_cut_by_length_gets_its_end_mark(name: str, build: Build, calculator: ToolSpec) -> None:
    chat = build(name)
    said = chat.say(Message("assistant", "", tool_calls=(CALL,)))
    assert said[-1] in chat.end_ids
    whole = chat.bridge(said, [RESULT], [calculator]).ids
    assert chat.bridge(said[:-1], [RESULT], [calculator]).ids == (said[-1], *whole)


def test_a_header_that_ends_a_turn_is_not_repeated(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    chat, tokenizer = build("headers"), tokenizers["headers"]
    user, observation = tokenizer.convert_tokens_to_ids(["<|user|>", "<|observation|>"])
    assert {user, observation} <= set(chat.end_ids)
    bridge = chat.bridge([5, observation], [RESULT], [calculator]).ids
    assert tokenizer.decode(bridge) == "\n<tool_response>6</tool_response><|assistant|>\n".lstrip("\n")
    # The model expected a user, and a tool answers: what it sampled stays, and the tool's header follows.
    assert chat.bridge([5, user], [RESULT], [calculator]).ids == (observation, *bridge)
    assert chat.bridge([5], [RESULT], [calculator]).ids == (observation, *bridge)


def test_bridge_of_consecutive_results_is_one_user_turn(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    chat = build("qwen")
    second = Message("tool", "7", tool_call_id="call00001", name="calculator")
    sampled = chat.say(Message("assistant", "", tool_calls=(CALL, ToolCall("calculator", {}, id="call00001"))))
    text = tokenizers["qwen"].decode(chat.bridge(sampled, [RESULT, second], [calculator]).ids)
    assert text == (
        "\n<|im_start|>user\n<tool_response>\n6\n</tool_response>\n<tool_response>\n7\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_thinking_stays_as_sampled_where_the_template_strips_it(build: Build, tokenizers: Any) -> None:
    chat, tokenizer = build("thinking"), tokenizers["thinking"]
    messages = [
        Message("user", "What is 2*3?"),
        Message("assistant", "6", reasoning="two times three"),
        Message("user", "Sure?"),
        Message("assistant", "Yes.", reasoning="it is"),
    ]
    assert "two times three" not in tokenizer.decode(chat.whole(messages, []))
    text = tokenizer.decode(chat.turn_by_turn(messages, []))
    assert "<think>\ntwo times three\n</think>\n\n6<|im_end|>\n<|im_start|>user\nSure?" in text
    assert any("rewrites earlier turns" in remark for remark in chat.check([]))


# What can't be done is said before a run.


def test_a_template_whose_turns_end_in_text_is_refused(build: Build) -> None:
    with pytest.raises(ChatFormatError) as caught:
        build("text_ends")
    assert "environments.default.chat_format" in str(caught.value)
    assert "ordinary text" in str(caught.value)
    assert "plain" in (caught.value.hint or "")


def test_a_template_whose_calls_depend_on_what_follows_is_refused(
    build: Build, tokenizers: Any, calculator: ToolSpec
) -> None:
    template = tokenizers["one_call"].chat_template.replace("<|call|>", "{{ '<|call|>' if loop.last else ';' }}")
    chat_or_error: Any = None
    try:
        chat_or_error = build("one_call", chat_template=template)
        chat_or_error.check([calculator])
    except ChatFormatError as error:
        chat_or_error = error
    assert isinstance(chat_or_error, ChatFormatError)
    assert "can't be continued turn by turn" in str(chat_or_error)
    assert "preamble: always" in (chat_or_error.hint or "")
    assert build("one_call", chat_template=template, preamble="always").check([calculator]) == []


def test_a_demonstration_loses_nothing_in_silence(build: Build, tokenizers: Any) -> None:
    with pytest.raises(ChatFormatError, match="drops the content"):
        build("one_call").say(Message("assistant", "Let me see.", tool_calls=(CALL,)))
    # A template that knows no reasoning gets it as text.
    said = tokenizers["qwen"].decode(build("qwen").say(Message("assistant", "6", reasoning="two times three")))
    assert said == "<think>\ntwo times three\n</think>\n\n6<|im_end|>"


def test_reasoning_where_the_prompt_closes_thinking_is_refused(build: Build, tokenizers: Any) -> None:
    chat = build("thinking", template_kwargs={"enable_thinking": False})
    with pytest.raises(ChatFormatError, match="closes thinking before the model speaks"):
        chat.say(Message("assistant", "6", reasoning="two times three"))
    said = chat.say(Message("assistant", "6"))
    assert tokenizers["thinking"].decode(said) == "6<|im_end|>"


def test_templates_by_name(build: Build, tokenizers: Any, calculator: ToolSpec) -> None:
    """Some tokenizers bring one template for conversations with tools and one for those without."""
    tokenizer = copy.copy(tokenizers["qwen"])
    tokenizer.chat_template = {
        "default": tokenizers["smollm"].chat_template,
        "tool_use": tokenizers["qwen"].chat_template,
    }
    chat = TemplateFormat(None, BuildContext("template", tokenizer=tokenizer))
    messages = [
        Message("user", "2*3?"),
        Message("assistant", "", tool_calls=(CALL,)),
        RESULT,
        Message("assistant", "6"),
    ]
    assert chat.turn_by_turn(messages, [calculator]) == build("qwen").turn_by_turn(messages, [calculator])
    assert chat.open(messages[:1], []) == build("smollm").open(messages[:1], [])


@pytest.mark.parametrize(
    ("written", "instead"),
    [
        # Calls are shown only where there is no content, and an empty one is one.
        ("{% if message.tool_calls %}", "{% if message.content is not defined or message.content is none %}"),
        # A mapping would be printed in Python's notation.
        ("{{ '' + f.arguments }}", "{{ f.arguments }}"),
    ],
)
def test_the_shape_of_calls_is_found(written: str, instead: str, build: Build, tokenizers: Any) -> None:
    source = tokenizers["one_call"].chat_template
    assert written in source
    chat = build("one_call", chat_template=source.replace(written, instead))
    said = chat.say(Message("assistant", "", tool_calls=(CALL,)))
    assert tokenizers["one_call"].decode(said) == 'to=calculator {"expression": "2*3"}<|call|>'


def test_a_variable_that_the_template_does_not_know_is_told(build: Build) -> None:
    remarks = build("qwen", template_kwargs={"enable_thinkng": False, "enable_thinking": False}).check([])
    told = [remark for remark in remarks if "template_kwargs" in remark]
    assert told == ["the chat template doesn't use `enable_thinkng` of template_kwargs"]
