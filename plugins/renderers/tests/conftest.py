"""A tokenizer for every family: a small one made here with that family's special tokens, and real ones where they are.

gpt-oss is encoded by the library `openai-harmony`, whose vocabulary is OpenAI's own: its tests need the file
o200k_base.tiktoken in the folder that TIKTOKEN_ENCODINGS_BASE names, and are skipped without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from toolrl.protocols import BuildContext
from toolrl.types import ToolSpec
from toolrl_plugin_renderers.chat import RenderersFormat
from toolrl_plugin_renderers.options import RenderersFormatOptions, RenderersParserOptions
from toolrl_plugin_renderers.parser import RenderersParser

CORPUS = [
    "user assistant system tool What is the answer? The answer is 42. calculator expression search query",
    '{"name": "calculator", "arguments": {"expression": "2*3"}} function parameters type object string description',
    "You may call one or more functions to assist with the user query. <tools></tools> <tool_call> </tool_call>",
    "héllo wörld, 你好 naïve café — 1234567890\n\n\t for each, return a json object within XML tags",
] * 4

CHATML = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
VISION = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
GLM = ["[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"]
ARGUMENTS = ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]
DEEPSEEK = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
DEEPSEEK_CALLS = ["<｜tool▁sep｜>"] + [
    f"<｜tool▁{what}▁{edge}｜>" for what in ("calls", "call", "outputs", "output") for edge in ("begin", "end")
]
DEEPSEEK_TASKS = [
    f"<｜{name}｜>" for name in ("latest_reminder", "action", "query", "authority", "domain", "title", "read_url")
]
GEMMA = ["<bos>", "<eos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>", "<|tool>", "<tool|>"]
GEMMA += ["<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>"]
GEMMA += ["<|image>", "<|image|>", "<image|>", '<|"|>']
HY3 = [
    f"<｜{name}:opensource｜>"
    for name in ("hy_begin_of_sentence", "hy_eos", "hy_User", "hy_Assistant", "reasoning_mode")
]
HY3_TAGS = ["<tool_sep:opensource>"] + [
    f"<{slash}{name}:opensource>"
    for name in ("think", "tool_calls", "tool_call", "arg_key", "arg_value", "tool_responses", "tool_response")
    for slash in ("", "/")
]
INKLING = [f"<|message_{role}|>" for role in ("user", "model", "system", "tool")]
INKLING += [
    f"<|content_{kind}|>"
    for kind in ("text", "thinking", "image", "audio_input", "xml", "invoke_tool_json", "invoke_tool_text")
]
INKLING += ["<|content_model_end_sampling|>", "<|end_message|>", "<|audio_end|>", "<|unused_200054|>"]
INKLING += ["<|unused_200053|>", "<|endoftext|>"]
KIMI = [f"<|im_{name}|>" for name in ("user", "assistant", "system", "middle", "end")]
KIMI += [f"<|tool_{name}|>" for name in ("calls_section_begin", "calls_section_end", "call_begin", "call_end")]
KIMI += ["<|tool_call_argument_begin|>"]
MEDIA = [f"<|media_{name}|>" for name in ("begin", "content", "pad", "end")]
LLAMA = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|end_of_text|>"]
LLAMA += ["<|eom_id|>", "<|python_tag|>"]

VOCABULARY: dict[str, tuple[list[str], list[str]]] = {
    **dict.fromkeys(("qwen3", "prime-qwen3", "nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), (CHATML, TAGS)),
    **dict.fromkeys(("qwen3-vl", "qwen3.5", "qwen3.6", "qwen3.8"), ([*CHATML, *VISION], TAGS)),
    **dict.fromkeys(("glm-4.5", "glm-5", "glm-5.1", "glm-5.3"), (GLM, [*TAGS, *ARGUMENTS])),
    **dict.fromkeys(
        ("laguna-xs.2", "laguna-xs-2.1", "laguna-s-2.1", "laguna-m.1"),
        (["〈|EOS|〉"], [*TAGS[:4], "<assistant>", "</assistant>"]),
    ),
    "deepseek-v3": (DEEPSEEK, DEEPSEEK_CALLS),
    "deepseek-r1": (DEEPSEEK, [*DEEPSEEK_CALLS, "<think>", "</think>"]),
    "deepseek-v4": ([*DEEPSEEK, *DEEPSEEK_TASKS, "｜DSML｜"], ["<think>", "</think>"]),
    "kimi-k2": (KIMI, []),
    "kimi-k2.5": ([*KIMI, *MEDIA, "<|endoftext|>"], ["<think>", "</think>"]),
    "llama-3": (LLAMA, []),
    "minimax-m2": (["]~!b[", "]~b]", "[e~["], ["<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"]),
    "gemma4": (GEMMA, []),
    "hy3": (HY3, HY3_TAGS),
    "inkling": (INKLING, []),
}
"""By family: special tokens, and added tokens that aren't special."""
ENDS = {
    "gemma4": "<turn|>",
    "minimax-m2": "[e~[",
    "hy3": "<｜hy_eos:opensource｜>",
    "inkling": "<|content_model_end_sampling|>",
    "llama-3": "<|eot_id|>",
    "gpt-oss": "<|return|>",
}
HARMONY = {
    "<|startoftext|>": 199998, "<|endoftext|>": 199999, "<|return|>": 200002, "<|constrain|>": 200003,
    "<|channel|>": 200005, "<|start|>": 200006, "<|end|>": 200007, "<|message|>": 200008, "<|call|>": 200012,
}  # fmt: skip
HARMONY_SPLITS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@cache
def _backend() -> str:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    return str(backend.to_str())


@cache
def tokenizer_for(family: str) -> Any:
    """A small tokenizer with the family's tokens, or a real one for `FAMILY@FOLDER`, a folder in $TOOLRL_TOKENIZERS.
    Skips where the family needs a vocabulary that isn't there."""
    if "@" in family:
        return AutoTokenizer.from_pretrained(Path(os.environ["TOOLRL_TOKENIZERS"]) / family.partition("@")[2])
    if family == "gpt-oss":
        return _harmony_tokenizer()
    backend = Tokenizer.from_str(_backend())
    special, added = VOCABULARY[family]
    backend.add_special_tokens(list(special))
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in added])
    end = ENDS.get(family) or next(text for text in (*CHATML[1:], DEEPSEEK[1], "〈|EOS|〉", KIMI[4]) if text in special)
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=end, clean_up_tokenization_spaces=False)


def _harmony_tokenizer() -> Any:
    from transformers.convert_slow_tokenizer import TikTokenConverter

    vocabulary = Path(os.environ.get("TIKTOKEN_ENCODINGS_BASE", "-")) / "o200k_base.tiktoken"
    if not vocabulary.is_file():
        pytest.skip("gpt-oss needs o200k_base.tiktoken in the folder that TIKTOKEN_ENCODINGS_BASE names")
    numbers = {number: text for text, number in HARMONY.items()}
    special = [numbers.get(number, f"<|reserved_{number}|>") for number in range(199998, 200013)]
    converter = TikTokenConverter(vocab_file=str(vocabulary), pattern=HARMONY_SPLITS, extra_special_tokens=special)
    return PreTrainedTokenizerFast(
        tokenizer_object=converter.converted(), eos_token=ENDS["gpt-oss"], clean_up_tokenization_spaces=False
    )


def _context(tokenizer: Any) -> BuildContext:
    return BuildContext("renderers", where="environments.default.chat_format", tokenizer=tokenizer)


@cache
def _format(family: str, options: tuple[tuple[str, Any], ...]) -> RenderersFormat:
    given = RenderersFormatOptions(renderer=family.partition("@")[0], options=dict(options))
    return RenderersFormat(given, _context(tokenizer_for(family)))


@cache
def _parser(family: str, options: tuple[tuple[str, Any], ...]) -> RenderersParser:
    given = RenderersParserOptions(renderer=family.partition("@")[0], options=dict(options))
    return RenderersParser(given, _context(tokenizer_for(family)))


@pytest.fixture(scope="session")
def tokenizer_of() -> Callable[[str], Any]:
    return tokenizer_for


@pytest.fixture(scope="session")
def format_of() -> Callable[..., RenderersFormat]:
    """`format_of("glm-5", clear_thinking=False)`: a chat format around that family's small tokenizer."""
    return lambda family, **options: _format(family, tuple(options.items()))


@pytest.fixture(scope="session")
def parser_of() -> Callable[..., RenderersParser]:
    """The same for a parser."""
    return lambda family, **options: _parser(family, tuple(options.items()))


@pytest.fixture(scope="session")
def look() -> ToolSpec:
    """The tool of these tests."""
    properties = {"query": {"type": "string", "description": "What to look for."}, "limit": {"type": "integer"}}
    return ToolSpec("look", "Looks it up.", {"type": "object", "properties": properties, "required": ["query"]})
