"""What is encoded by its pieces has the ids of the whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tokenizers = pytest.importorskip("tokenizers")

from toolrl.chat.fixed import FixedPieces  # noqa: E402

TOKENS = ("<|im_start|>", "<|im_end|>", "<tool_response>", "</tool_response>")
LONG = "You solve problems. " * 20


def make(prefix: bool = False, **settings: Any) -> tuple[Any, FixedPieces, list[str]]:
    """A byte-level tokenizer, its pieces, and what it was asked to encode."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Metaspace(prepend_scheme="first") if prefix else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    alphabet = [*pre_tokenizers.ByteLevel.alphabet(), "▁", "\n"]
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([LONG, "user and assistant and 12 34 boxes <tool", "x x x"], trainer)
    tokenizer.add_tokens([AddedToken(text, **{"normalized": False, **settings}) for text in TOKENS])
    asked: list[str] = []

    def encode(text: str) -> list[int]:
        asked.append(text)
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    added = tokenizer.get_added_tokens_decoder()
    pieces = FixedPieces(list(added.values()), {token.content: number for number, token in added.items()}, encode)
    asked.clear()
    return tokenizer, pieces, asked


def after_a_turn(result: str) -> str:
    return (
        f"<|im_end|>\n<|im_start|>user\n<tool_response>\n{result}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )


def ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def test_only_what_is_new_is_encoded() -> None:
    tokenizer, pieces, asked = make()
    assert pieces(after_a_turn("1")) is None
    pieces.learn(after_a_turn("1"))
    asked.clear()
    assert pieces(after_a_turn("12 boxes")) == ids(tokenizer, after_a_turn("12 boxes"))
    assert asked == ["\n12 boxes\n"]


PARTS = st.one_of(st.sampled_from([*TOKENS, "<tool", "_response>", "<|", "|>", "<", "\n", "user\n", "12"]), st.text())


@settings(max_examples=200, deadline=None)
@given(st.lists(PARTS, max_size=12).map("".join))
def test_ids_are_those_of_the_whole(text: str) -> None:
    tokenizer, pieces, _ = KNOWN
    text = text.encode("utf-8", "replace").decode()
    assert pieces(text) == ids(tokenizer, text)


KNOWN = make()
KNOWN[1].learn(after_a_turn("1"))


def test_what_prompts_have_in_common_is_encoded_once() -> None:
    tokenizer, pieces, asked = make()
    prompts = [f"<|im_start|>{LONG}<|im_end|>\n<|im_start|>user\n{number}<|im_end|>" for number in range(3)]
    for prompt in prompts[:2]:
        pieces.learn_what_returns(prompt)
    asked.clear()
    assert pieces(prompts[2]) == ids(tokenizer, prompts[2])
    assert LONG not in asked
    assert "\n" in asked


@pytest.mark.parametrize(
    "settings",
    [{"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}, {"prefix": True}],
    ids=str,
)
def test_tokenizers_that_have_to_see_the_whole_text_do(settings: Any) -> None:
    _, pieces, asked = make(**settings)
    pieces.learn(after_a_turn("1"))
    pieces.learn_what_returns(after_a_turn(LONG))
    pieces.learn_what_returns(after_a_turn(LONG))
    assert pieces(after_a_turn("2")) is None
    assert not asked
