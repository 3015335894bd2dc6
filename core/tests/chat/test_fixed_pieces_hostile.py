"""Pieces of texts that nobody foresaw: broken ones, and more than is kept."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

from toolrl.chat import fixed
from toolrl.chat.fixed import FixedPieces
from toolrl.types import Message

LONG = "You solve problems. " * 20
TOKENS = ("<|im_start|>", "<|im_end|>")


def pieces_of(tokenizer: Any, asked: list[str]) -> FixedPieces:
    def encode(text: str) -> list[int]:
        asked.append(text)
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    added = tokenizer.get_added_tokens_decoder()
    return FixedPieces(list(added.values()), {token.content: number for number, token in added.items()}, encode)


def byte_level() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([LONG], trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in TOKENS])
    return tokenizer


def test_half_of_a_surrogate_pair_in_instructions_that_return_is_replaced_as_ever(build: Any) -> None:
    chat = build("qwen")
    system = Message("system", LONG + "\ud83d")
    shown = [chat.open([system, Message("user", f"question {number}")], []).ids for number in range(3)]
    plain = build("qwen").open(
        [Message("system", LONG + "\N{REPLACEMENT CHARACTER}"), Message("user", "question 2")], []
    )
    assert shown[2] == plain.ids


def test_where_nothing_more_is_kept_each_prompt_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, asked = byte_level(), list[str]()
    pieces = pieces_of(tokenizer, asked)
    monkeypatch.setattr(fixed, "_MOST_KEPT", len(LONG) + 10)
    other = "x" * len(LONG)
    for text in (LONG, LONG, other, other):
        pieces.learn_what_returns(f"<|im_start|>{text}<|im_end|>")
    asked.clear()
    pieces.learn_what_returns(f"<|im_start|>{other}<|im_end|>")
    assert not asked
    assert pieces(f"<|im_start|>{LONG}<|im_end|>") == tokenizer.encode(f"<|im_start|>{LONG}<|im_end|>").ids
    assert not asked


def test_a_piece_too_long_to_keep_does_not_end_it_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, asked = byte_level(), list[str]()
    pieces = pieces_of(tokenizer, asked)
    monkeypatch.setattr(fixed, "_MOST_KEPT", 2 * len(LONG))
    for _ in range(2):
        pieces.learn_what_returns(f"<|im_start|>{'x' * 3 * len(LONG)}<|im_end|>")
    pieces.learn(f"<|im_start|>{LONG}<|im_end|>")
    asked.clear()
    assert pieces(f"<|im_start|>{LONG}<|im_end|>") is not None
    assert not asked
