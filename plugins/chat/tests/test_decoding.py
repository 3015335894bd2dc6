"""Ids to text with offsets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tokenizers import llama_2
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from toolrl_plugin_chat.decoding import Decoder
from toolrl_plugin_chat.template import TemplateFormat

Build = Callable[..., TemplateFormat]


@pytest.fixture(scope="module")
def metaspace() -> Any:
    """Like Llama 2's: `▁` for blanks, bytes as tokens, a leading blank that decoding takes off again."""
    return PreTrainedTokenizerFast(tokenizer_object=llama_2(), unk_token="<unk>")


@pytest.fixture(scope="module")
def words_only() -> Any:
    """A decoder that no table of bytes describes: tokens are joined with blanks."""
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2, "three": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", eos_token="[END]")


decoder_of = functools.cache(Decoder)


def own(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


@settings(max_examples=200)
@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_text_is_the_tokenizers_own(text: str, tokenizers: Any) -> None:
    tokenizer = tokenizers["qwen"]
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    decoded = decoder_of(tokenizer)(ids)
    assert decoded.text == own(tokenizer, ids)
    _offsets_hold(tokenizer, ids, decoded.offsets, decoded.text)


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, 640), max_size=20))
def test_any_ids_decode_as_the_tokenizer_decodes_them(ids: list[int], tokenizers: Any) -> None:
    """Broken characters and ids beyond the vocabulary included."""
    tokenizer = tokenizers["qwen"]
    decoded = decoder_of(tokenizer)(ids)
    assert decoded.text == own(tokenizer, ids)
    assert len(decoded.offsets) == len(ids) + 1
    assert list(decoded.offsets) == sorted(decoded.offsets)
    assert decoded.offsets[-1] == len(decoded.text)


def _offsets_hold(tokenizer: Any, ids: list[int], offsets: tuple[int, ...], text: str) -> None:
    """A token's start is the number of whole characters before its first byte."""
    position = 0
    data = text.encode()
    for token_id, offset in zip(ids, offsets, strict=False):
        assert offset == len(data[:position].decode(errors="ignore"))
        position += len(decoder_of(tokenizer)._bytes(token_id))
    assert position == len(data)


def test_the_end_mark_has_no_text(build: Build, tokenizers: Any) -> None:
    chat, tokenizer = build("qwen"), tokenizers["qwen"]
    ids = tokenizer("the<|im_end|>answer<|end|><|im_end|>", add_special_tokens=False)["input_ids"]
    decoded = chat.decode(ids)
    # Only the last one is a mark of this turn; before it, special tokens are text.
    assert decoded.text == "the<|im_end|>answer<|end|>"
    assert decoded.offsets[-2:] == (len(decoded.text), len(decoded.text))
    assert len(decoded.offsets) == len(ids) + 1
    assert chat.decode(()).offsets == (0,)
    assert chat.decode(chat.end_ids[:1]).text == ""


def test_a_decoder_without_a_table(words_only: Any) -> None:
    decoder = Decoder(words_only)
    decoded = decoder([1, 2, 3])
    assert decoded.text == own(words_only, [1, 2, 3]) == "one two three"
    assert decoded.offsets == (0, 3, 7, 13)
