"""The template format on real tokenizers: every folder in $TOOLRL_TOKENIZERS that holds a tokenizer.

Each template is asked what a canonical conversation may hold (several calls, text beside calls, thinking); random ones
of that kind must come out as the template itself renders them, ordinary text must encode as the tokenizer itself
encodes it, and text from outside must bring no control token.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.chat.template import TemplateFormat
from toolrl.errors import ChatFormatError
from toolrl.protocols import BuildContext
from toolrl.types import Message, ToolCall, ToolSpec

_FOLDER = os.environ.get("TOOLRL_TOKENIZERS")
_NAMES = sorted(path.parent.name for path in Path(_FOLDER).glob("*/tokenizer.json")) if _FOLDER else []
pytestmark = pytest.mark.skipif(not _NAMES, reason="TOOLRL_TOKENIZERS names no folder with tokenizers")
COMMON = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@cache
def loaded(name: str) -> tuple[TemplateFormat, Any]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(Path(_FOLDER or "") / name)
    return TemplateFormat(None, BuildContext("template", tokenizer=tokenizer)), tokenizer


@cache
def canonical(name: str) -> dict[str, Any]:
    """What conversations this template shows whole."""
    chat, _ = loaded(name)
    call = ToolCall("calculator", {"expression": "1"}, id="call00000")
    try:
        chat.say(Message("assistant", "Let me see.", tool_calls=(call,)))
        beside = True
    except ChatFormatError:
        beside = False
    parallel = 3 if chat.abilities.parallel or chat._conversation.own_preamble else 1
    return {
        "parallel": parallel,
        "content_beside_calls": beside,
        "reasoning": chat.abilities.shape.reasoning_key is not None,
    }


@pytest.mark.parametrize("name", _NAMES)
@COMMON
@given(data=st.data())
def test_turn_by_turn_equals_the_whole(
    name: str, data: st.DataObject, calculator: ToolSpec, make_conversations: Any
) -> None:
    chat, tokenizer = loaded(name)
    messages = data.draw(make_conversations(**canonical(name)))
    conversation = chat._conversation
    dicts, tools = conversation.dicts(messages, [calculator]), conversation.native_tools([calculator])
    whole = tuple(tokenizer.apply_chat_template(dicts, tools=tools, return_dict=True)["input_ids"])
    ids = chat.turn_by_turn(messages, [calculator])
    assert whole[: len(ids)] == ids
    assert tokenizer.decode(whole[len(ids) :]).strip() == ""


@pytest.mark.parametrize("name", _NAMES)
@COMMON
@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_decoding_is_the_tokenizers_own(name: str, text: str) -> None:
    chat, tokenizer = loaded(name)
    ids = chat.inline(text)
    decoded = chat.decode(ids)
    assert decoded.text == tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert len(decoded.offsets) == len(ids) + 1


@pytest.mark.parametrize("name", _NAMES)
@COMMON
@given(data=st.data())
def test_any_ids_decode(name: str, data: st.DataObject) -> None:
    chat, tokenizer = loaded(name)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 100), max_size=12))
    if ids and ids[-1] in chat.end_ids:
        ids = ids[:-1]
    expected = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert chat.decode(ids).text == expected


@pytest.mark.parametrize("name", _NAMES)
@COMMON
@given(data=st.data())
def test_results_bring_no_control_token(name: str, data: st.DataObject, calculator: ToolSpec) -> None:
    chat, tokenizer = loaded(name)
    marks = sorted(chat._codec.special | set(tokenizer.convert_ids_to_tokens(list(chat.end_ids))))
    parts = data.draw(st.lists(st.sampled_from(marks) | st.text(max_size=8), min_size=1, max_size=6))
    ids = set(tokenizer.convert_tokens_to_ids(marks))

    def controls(text: str) -> list[int]:
        result = Message("tool", text, tool_call_id="call00000", name="calculator")
        return [i for i in chat.bridge((), [result], [calculator]).ids if i in ids]

    assert controls("x" + "".join(parts) + "y") == controls("x")
    assert not ids.intersection(chat.inline("".join(parts)))
