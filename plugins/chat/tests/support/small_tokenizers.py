"""Small tokenizers of the kinds that there are, trained on a few sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CORPUS = [
    "user assistant system tool What is the answer? The answer is 42. calculator expression search query",
    '{"name": "calculator", "arguments": {"expression": "2*3"}} function parameters type object string description',
    "You may call one or more functions to assist with the user query. <tools></tools> <tool_call> </tool_call>",
    "héllo wörld, 你好 naïve café — 1234567890\n\n\t for each, return a json object within XML tags",
] * 4


def byte_level(*, normalizer: Any = None, special: Sequence[str] = (), tags: Sequence[str] = ()) -> Tokenizer:
    """Like GPT-2's: every text is made of bytes, and merges of them."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    backend.add_special_tokens(list(special))
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return backend


def sentence_piece() -> Tokenizer:
    """Like Gemma's: `▁` for blanks, bytes for what is in no piece."""
    return _pieces(
        normalizers.Replace(" ", "▁"), [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )


def llama_2() -> Tokenizer:
    """Like Llama 2's: besides, a blank before the first word of a text and behind every added token."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return _pieces(normalizer, steps)


def _pieces(normalizer: Any, steps: list[Any]) -> Tokenizer:
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizer
    lines = [line for text in CORPUS for line in text.split("\n")]
    trained.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    model = json.loads(trained.to_str())["model"]
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += [piece for piece in model["vocab"] if piece not in words]
    merges = [tuple(merge) for merge in model["merges"]]
    vocabulary = {word: number for number, word in enumerate(words)}
    backend = Tokenizer(models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizer
    backend.decoder = decoders.Sequence(steps)
    return backend
