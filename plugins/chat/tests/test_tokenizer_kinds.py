"""Tokenizers of every kind under one template: blanks before words, normalizers, marks that swallow white space."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from canonical import CALCULATOR, conversations
from hypothesis import HealthCheck, given, settings
from small_tokenizers import byte_level, llama_2, sentence_piece
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from toolrl.errors import ChatFormatError
from toolrl.protocols import BuildContext
from toolrl.types import Message, ToolCall
from toolrl_plugin_chat.options import TemplateOptions
from toolrl_plugin_chat.plain import PlainFormat
from toolrl_plugin_chat.template import TemplateFormat

CHATML = """{{ bos_token }}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
INSTRUCT = """{% for message in messages %}{% if message.role == 'assistant' %} {{ message.content }}</s> {% else -%}
[INST] {{ message.content }} [/INST]{% endif %}{% endfor %}"""
MARKS = ("<|im_start|>", "<|im_end|>")


def made(backend: Tokenizer, template: str, *, special: bool = True, **flags: bool) -> Any:
    """A tokenizer with ChatML's marks; `flags` are those of its added tokens."""
    backend.add_special_tokens(["<s>", "</s>"])
    tokens = [AddedToken(mark, special=special, normalized=False, **flags) for mark in MARKS]
    (backend.add_special_tokens if special else backend.add_tokens)(tokens)
    eos = "</s>" if "</s>" in template else "<|im_end|>"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token=eos, clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = template
    return tokenizer


def blank_first(scheme: str) -> Tokenizer:
    """Like newer Llama 2 files: the blank comes from a pre-tokenizer, before a text or before every part of it."""
    backend = sentence_piece()
    backend.normalizer = normalizers.Sequence([])
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
    return backend


def spaced_bytes() -> Tokenizer:
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    return backend


KINDS: dict[str, Callable[[], Any]] = {
    "byte level": lambda: made(byte_level(), CHATML),
    "byte level, composed": lambda: made(byte_level(normalizer=normalizers.NFC()), CHATML),
    "byte level, decomposed": lambda: made(byte_level(normalizer=normalizers.NFD()), CHATML),
    "byte level, a blank first": lambda: made(spaced_bytes(), CHATML),
    "sentence piece": lambda: made(sentence_piece(), CHATML),
    "a blank before every part": lambda: made(llama_2(), CHATML),
    "a blank before every part, text between": lambda: made(llama_2(), INSTRUCT),
    "a blank first": lambda: made(blank_first("first"), CHATML),
    "a blank first, text between": lambda: made(blank_first("first"), INSTRUCT),
    "a blank always": lambda: made(blank_first("always"), CHATML),
    "marks swallow what is behind them": lambda: made(byte_level(), CHATML, rstrip=True),
    "marks swallow what is before them": lambda: made(byte_level(), CHATML, lstrip=True),
    "marks swallow, and a blank first": lambda: made(blank_first("first"), CHATML, rstrip=True),
    "marks that aren't special": lambda: made(byte_level(), CHATML, special=False),
}


@pytest.fixture(scope="module")
def formats() -> dict[str, TemplateFormat]:
    return {name: TemplateFormat(None, BuildContext("template", tokenizer=make())) for name, make in KINDS.items()}


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=25, suppress_health_check=list(HealthCheck), deadline=None)
@given(messages=conversations())
def test_turn_by_turn_equals_the_whole(name: str, messages: list[Message], formats: dict[str, TemplateFormat]) -> None:
    chat = formats[name]
    ids, whole = chat.turn_by_turn(messages, [CALCULATOR]), chat.whole(messages, [CALCULATOR])
    assert whole[: len(ids)] == ids
    assert chat.decode(whole[len(ids) :]).text.strip() == ""


@pytest.mark.parametrize("name", KINDS)
def test_a_result_inside_a_turn_gets_no_blank_of_its_own(name: str, formats: dict[str, TemplateFormat]) -> None:
    """What was sampled and an inline result are together what the tokenizer makes of the joint text."""
    chat = formats[name]
    sampled = chat.say(Message("assistant", "the answer ```"))[:-1]
    joined = (*sampled, *chat.inline("\nis 42\n"))
    assert chat.decode(joined).text.strip() == "the answer ```\nis 42"
    assert chat.decode((*sampled, *chat.inline("is"))).text.strip() == "the answer ```is"


# End tokens that the model's folder names.


def in_folder(folder: Path, config: str) -> Any:
    (folder / "generation_config.json").write_text(config)
    tokenizer = made(byte_level(), CHATML)
    tokenizer.name_or_path = str(folder)
    return tokenizer


def test_ends_of_the_generation_config(tmp_path: Path) -> None:
    tokenizer = in_folder(tmp_path, "{}")
    end, close = tokenizer.convert_tokens_to_ids(["<|im_end|>", "</s>"])
    in_folder(tmp_path, json.dumps({"eos_token_id": [close, end, 5, True, "x"]}))
    context = BuildContext("template", tokenizer=tokenizer)
    # 5 is an ordinary token of this vocabulary: a default that some configs hold.
    assert TemplateFormat(None, context).end_ids == (end, close)
    assert PlainFormat(None, context).end_ids == (end, close)
    in_folder(tmp_path, json.dumps({"eos_token_id": close}))
    assert TemplateFormat(None, context).end_ids == (end, close)
    assert TemplateFormat(None, BuildContext("template", tokenizer=made(byte_level(), CHATML))).end_ids == (end,)


def test_a_turn_that_ended_with_another_end_token_gets_no_second_one(tmp_path: Path) -> None:
    tokenizer = in_folder(tmp_path, "{}")
    end, close = tokenizer.convert_tokens_to_ids(["<|im_end|>", "</s>"])
    in_folder(tmp_path, json.dumps({"eos_token_id": [close, end]}))
    chat = TemplateFormat(None, BuildContext("template", tokenizer=tokenizer))
    reply = [Message("user", "Sure?")]
    assert chat.bridge([5, close], reply, []).ids == chat.bridge([5, end], reply, []).ids
    assert chat.bridge([5], reply, []).ids == (end, *chat.bridge([5, end], reply, []).ids)


def test_a_turn_that_two_marks_close() -> None:
    """Whichever of them the model stops at, none comes twice."""
    tokenizer = made(byte_level(), CHATML.replace("<|im_end|>", "<|im_end|></s>"))
    chat = TemplateFormat(None, BuildContext("template", tokenizer=tokenizer))
    end, close = tokenizer.convert_tokens_to_ids(["<|im_end|>", "</s>"])
    assert set(chat.end_ids) == {end, close}
    reply = [Message("user", "Sure?")]
    rest = chat.bridge([5, end, close], reply, []).ids
    assert rest[0] not in (end, close)
    assert chat.bridge([5, end], reply, []).ids == (close, *rest)
    assert chat.bridge([5], reply, []).ids == (end, close, *rest)


# Templates with manners of their own.

HARMONY = """{% for message in messages %}{% if message.role == 'assistant' %}{% if message.tool_calls -%}
{% set f = message.tool_calls[0].function %}<|start|>assistant to={{ f.name }}<|message|>{{ f.arguments | tojson -}}
<|call|>{% elif loop.last and not add_generation_prompt %}{% if message.thinking -%}
<|start|>assistant analysis<|message|>{{ message.thinking }}<|end|>{% endif -%}
<|start|>assistant final<|message|>{{ message.content }}<|return|>{% else -%}
<|start|>assistant final<|message|>{{ message.content }}<|end|>{% endif %}{% else -%}
<|start|>{{ message.role }}<|message|>{{ message.content }}<|end|>{% endif %}{% endfor -%}
{% if tools %}{{ '' }}{% endif %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""

RESPONSES = """{{ bos_token }}{% if tools %}<|turn>system
{{ tools | tojson }}<turn|>
{% endif %}{% for message in messages %}{% if message.role == 'tool' %}<|tool_response>{{ message.content -}}
<tool_response|>{% if not loop.last and messages[loop.index].role == 'user' %}<turn|>
{% endif %}{% else %}{% if loop.first or messages[loop.index0 - 1].role != 'tool' or message.role == 'user' -%}
<|turn>{{ message.role }}
{% endif %}{{ message.content }}{% for call in message.tool_calls %}<|tool_call>{{ call.function.name -}}
{{ call.function.arguments | tojson }}<tool_call|>{% endfor %}{% if not message.tool_calls %}<turn|>
{% elif loop.last %}<|tool_response>{% endif %}{% endif %}{% endfor %}
{%- if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>assistant
{% endif %}"""

NINE = """{{ bos_token }}{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}{% if message.role == 'user' %}{% if tools and message == asked[-1] -%}
[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST] {{ message.content }}[/INST]{% elif message.tool_calls -%}
[CALLS][{% for call in message.tool_calls %}{% if call.id | length != 9 %}{{ raise_exception('nine') }}{% endif -%}
{{ (call.function | tojson)[:-1] }}, "id": "{{ call.id }}"}{{ ', ' if not loop.last }}{% endfor %}]</s>
{%- elif message.role == 'tool' %}{% if message.tool_call_id | length != 9 %}{{ raise_exception('nine') }}{% endif -%}
[RESULTS]{"content": {{ message.content | tojson }}, "call_id": "{{ message.tool_call_id }}"}[/RESULTS]{% else -%}
{{ ' ' + message.content }}</s>{% endif %}{% endfor %}"""


def with_marks(template: str, eos: str, *marks: str) -> Any:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level(special=["<s>", eos, *marks]), bos_token="<s>", eos_token=eos
    )
    tokenizer.chat_template = template
    return tokenizer


CALL = ToolCall("calculator", {"expression": "1"}, id="call_1")
RESULT = Message("tool", "6", tool_call_id="call_1", name="calculator")


def test_a_mark_inside_a_turn_does_not_end_it() -> None:
    tokenizer = with_marks(HARMONY, "<|return|>", "<|start|>", "<|message|>", "<|end|>", "<|call|>")
    chat = TemplateFormat(TemplateOptions(preamble="never"), BuildContext("template", tokenizer=tokenizer))
    assert set(tokenizer.convert_ids_to_tokens(list(chat.end_ids))) == {"<|return|>", "<|call|>"}
    said = chat.say(Message("assistant", "6", reasoning="two times three"))
    assert tokenizer.decode(said) == (
        " analysis<|message|>two times three<|end|><|start|>assistant final<|message|>6<|return|>"
    )
    # History ends an answer with `<|end|>`; what was sampled stays, and isn't closed twice.
    reply = [Message("user", "Sure?")]
    assert (
        tokenizer.decode(chat.bridge(said, reply, []).ids) == "<|start|>user<|message|>Sure?<|end|><|start|>assistant"
    )
    assert tokenizer.decode(chat.bridge(said[:-1], reply, []).ids).startswith("<|end|><|start|>user")


def test_a_mark_that_opens_a_result_is_no_end_mark_of_an_answer() -> None:
    marks = ("<|turn>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>")
    tokenizer = with_marks(RESPONSES, "<turn|>", *marks)
    chat = TemplateFormat(None, BuildContext("template", tokenizer=tokenizer))
    opens, ends = tokenizer.convert_tokens_to_ids(["<|tool_response>", "<turn|>"])
    assert set(chat.end_ids) == {opens, ends}

    def bridged(last: list[int], message: Message) -> str:
        return str(tokenizer.decode(chat.bridge([5, *last], [message], [CALCULATOR]).ids))

    assert bridged([opens], RESULT) == "6<tool_response|>"
    assert bridged([], RESULT) == bridged([ends], RESULT) == "<|tool_response>6<tool_response|>"
    reply = Message("user", "Sure?")
    assert bridged([ends], reply) == "\n<|turn>user\nSure?<turn|>\n<|turn>assistant\n"
    assert bridged([], reply) == bridged([opens], reply) == "<turn|>" + bridged([ends], reply)


def test_ids_that_must_be_nine_letters() -> None:
    tokenizer = with_marks(
        NINE, "</s>", "[INST]", "[/INST]", "[CALLS]", "[RESULTS]", "[/RESULTS]", "[TOOLS]", "[/TOOLS]"
    )
    chat = TemplateFormat(None, BuildContext("template", tokenizer=tokenizer))
    assert chat.abilities.parallel
    call = Message("assistant", "", tool_calls=(CALL,))
    messages = [Message("user", "What?"), call, RESULT, Message("assistant", "6")]
    ids = chat.turn_by_turn(messages, [CALCULATOR])
    assert chat.whole(messages, [CALCULATOR])[: len(ids)] == ids
    second = Message("tool", "7", tool_call_id="call_2", name="calculator")
    text = tokenizer.decode(chat.bridge(chat.say(call), [RESULT, second], [CALCULATOR]).ids)
    assert text.count("[RESULTS]") == 2
    assert "call_1" not in text
    # The tools stand before the last question, so a reply brings them again.
    assert "[TOOLS]" in tokenizer.decode(chat.bridge((), [Message("user", "Sure?")], [CALCULATOR]).ids)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_generation_config_that_cannot_be_read(tmp_path: Path, text: str) -> None:
    tokenizer = in_folder(tmp_path, "{}")
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ChatFormatError, match="generation config can't be read"):
        TemplateFormat(None, BuildContext("template", tokenizer=tokenizer))
