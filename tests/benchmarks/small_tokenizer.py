"""A tokenizer like Qwen2.5's with a small vocabulary, made of text that comes with Python: nothing is downloaded."""

from __future__ import annotations

import pydoc_data.topics
from typing import Any

import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


def make_tokenizer(*seen: str) -> Any:
    """A byte-level BPE with TRL's chat template of Qwen2.5, and whole words for what the texts of `seen` repeat."""
    from trl.chat_template_utils import qwen2_5_chat_template as template

    tokenizer = Tokenizer(models.BPE())
    digits = pre_tokenizers.Split(Regex(r"\d"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    size = VOCABULARY - len(CONTROLS) - len(TAGS)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*pydoc_data.topics.topics.values(), *[template, *seen] * 12], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=template
    )
