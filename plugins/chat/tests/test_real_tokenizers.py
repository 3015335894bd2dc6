"""Real tokenizers: every folder in $TOOLRL_TOKENIZERS that holds one, with the chat format that fits it.

Ordinary text must encode as the tokenizer itself encodes it, any ids must decode as it decodes them, and text from
outside must bring no control token. What their templates do is shown in `test_families.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from chat_families import REAL_NAMES, tokenizer_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.protocols import BuildContext
from toolrl.types import Message, ToolSpec
from toolrl_plugin_chat.plain import PlainFormat
from toolrl_plugin_chat.template import TemplateFormat

pytestmark = pytest.mark.skipif(not REAL_NAMES, reason="TOOLRL_TOKENIZERS names no folder with tokenizers")
COMMON = settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)


@cache
def loaded(name: str) -> tuple[TemplateFormat | PlainFormat, Any]:
    tokenizer = tokenizer_of(f"tokenizer:{name}")
    context = BuildContext("chat_format", tokenizer=tokenizer)
    return (TemplateFormat(None, context) if tokenizer.chat_template else PlainFormat(None, context)), tokenizer


@pytest.mark.parametrize("name", REAL_NAMES)
@COMMON
@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_decoding_is_the_tokenizers_own(name: str, text: str) -> None:
    chat, tokenizer = loaded(name)
    ids = chat.inline(text)
    decoded = chat.decode(ids)
    assert decoded.text == tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert len(decoded.offsets) == len(ids) + 1


@pytest.mark.parametrize("name", REAL_NAMES)
@COMMON
@given(data=st.data())
def test_any_ids_decode(name: str, data: st.DataObject) -> None:
    chat, tokenizer = loaded(name)
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) + 100), max_size=12))
    if ids and ids[-1] in chat.end_ids:
        ids = ids[:-1]
    expected = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert chat.decode(ids).text == expected


@pytest.mark.parametrize("name", REAL_NAMES)
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
