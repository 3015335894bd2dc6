"""Chat templates of many model families, each with a tokenizer like its own.

Templates come from two places: the tokenizers in $TOOLRL_TOKENIZERS bring their own, and an installed `trl` bundles
those of many families. Those of `trl` come without a tokenizer: each gets the real one that is nearest to its family's,
with the family's special tokens added the way it has them. Where no real one is given, a small byte-level tokenizer
stands in; families with SentencePiece tokenizers always get a small one of that kind.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from small_tokenizers import byte_level, llama_2, sentence_piece
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from toolrl.protocols import BuildContext
from toolrl_plugin_chat.options import TemplateOptions
from toolrl_plugin_chat.template import TemplateFormat

REAL = Path(os.environ["TOOLRL_TOKENIZERS"]) if os.environ.get("TOOLRL_TOKENIZERS") else None
REAL_NAMES = sorted(path.parent.name for path in REAL.glob("*/tokenizer.json")) if REAL else []

_CHATML = ("<|im_start|>", "<|im_end|>")
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_TURN = ("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>", "<|SYSTEM_TOKEN|>")
_DEEPSEEK_CALLS = tuple(
    f"<｜tool▁{part}｜>"
    for part in (
        "calls▁begin", "calls▁end", "call▁begin", "call▁end", "sep",
        "outputs▁begin", "outputs▁end", "output▁begin", "output▁end",
    )
)  # fmt: skip
_GEMMA_MARKS = ("turn", "tool", "tool_call", "tool_response", "channel")
_GEMMA_4 = tuple(f"<{mark}>" for name in _GEMMA_MARKS for mark in (f"|{name}", f"{name}|"))
_GEMMA_4 += ('<|"|>', "<|think|>", "<|image|>")
_GLM = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>")
_LFM = ("tool_list", "tool_call", "tool_response")


@dataclass(frozen=True)
class Family:
    """Templates whose names begin alike, and what their models' tokenizer is like."""

    stem: str
    eos: str
    bos: str | None = None
    special: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    """Added tokens that aren't special."""
    base: str = "qwen2_5"
    """The real tokenizer that it gets; `sentence_piece` and `llama_2` are built here."""
    rstrip: bool = False
    """Its special tokens swallow the white space behind them."""


FAMILIES = (
    Family("cohere2", "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", (*_TURN, "<|START_RESPONSE|>", "<|END_RESPONSE|>")),
    Family("cohere", "<|END_OF_TURN_TOKEN|>", "<BOS_TOKEN>", _TURN),
    Family(
        "deepseek_r1_distill",
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
        tags=("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
    ),
    Family(
        "deepseekv3",
        "<｜end▁of▁sentence｜>",
        "<｜begin▁of▁sentence｜>",
        tags=("<｜User｜>", "<｜Assistant｜>", *_DEEPSEEK_CALLS, "<think>", "</think>"),
        base="deepseek_v3",
    ),
    Family("diffusion_gemma", "<turn|>", "<bos>", _GEMMA_4, base="sentence_piece"),
    Family("gemma4", "<turn|>", "<bos>", _GEMMA_4, base="sentence_piece"),
    Family("gemma", "<eos>", "<bos>", ("<start_of_turn>", "<end_of_turn>", "<start_of_image>"), base="sentence_piece"),
    Family(
        "glm4moe",
        "<|endoftext|>",
        special=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        tags=(*_TAGS, *_GLM),
    ),
    Family(
        "gptoss",
        "<|return|>",
        "<|startoftext|>",
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|endoftext|>"),
    ),
    Family(
        "idefics3",
        "<end_of_utterance>",
        "<|begin_of_text|>",
        ("<image>", "<fake_token_around_image>", *_HEADERS),
        base="llama3_2",
    ),
    Family(
        "lfm2",
        "<|im_end|>",
        "<|startoftext|>",
        (*_CHATML, *(f"<|{name}_{end}|>" for name in _LFM for end in ("start", "end"))),
        tags=("<think>", "</think>", "<image>"),
    ),
    Family("llama3", "<|eot_id|>", "<|begin_of_text|>", _HEADERS, base="llama3_2"),
    Family("llava_next", "</s>", "<s>", ("<image>",), base="llama_2"),
    Family("muse_glimmer", "<|eot|>", "<|begin|>", ("<|start|>", "<|message|>", "<|eom|>", "<|patch|>", "<|video|>")),
    Family("nemotron_3", "<|im_end|>", "<s>", _CHATML, _TAGS),
    Family(
        "phi3",
        "<|endoftext|>",
        "<s>",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
        base="llama_2",
        rstrip=True,
    ),
    Family("qwen2_5", "<|im_end|>", None, (*_CHATML, *_VISION), _TAGS[:2]),
    Family("qwen3", "<|im_end|>", None, (*_CHATML, *_VISION), _TAGS, base="qwen3"),
    Family(
        "smolvlm",
        "<end_of_utterance>",
        "<|im_start|>",
        ("<image>", "<fake_token_around_image>", "<|im_end|>", "<|endoftext|>"),
        base="gpt2",
    ),
)
"""The first whose stem a template's name begins with is its family."""


def _bundled() -> Path | None:
    spec = importlib.util.find_spec("trl")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(places[0]) / "chat_templates" if places else None
    return folder if folder is not None and folder.is_dir() else None


TRL = _bundled()
TRL_NAMES = sorted(path.stem for path in TRL.glob("*.jinja")) if TRL else []
NAMES = [*(f"tokenizer:{name}" for name in REAL_NAMES), *(f"trl:{name}" for name in TRL_NAMES)]
"""All that can be had here: `tokenizer:NAME` for one of $TOOLRL_TOKENIZERS, `trl:NAME` for a template of `trl`."""


def family_of(name: str) -> Family:
    """The family of a template of `trl`. Raises LookupError for one that this table doesn't know."""
    for family in FAMILIES:
        if name.startswith(family.stem):
            return family
    raise LookupError(f"trl bundles a template {name!r} of no known family; add it to FAMILIES")


def source_of(name: str) -> str | None:
    """The source of a template of `trl`; None for a tokenizer with its own."""
    origin, _, stem = name.partition(":")
    return (TRL / f"{stem}.jinja").read_text(encoding="utf-8") if origin == "trl" and TRL else None


@cache
def tokenizer_of(name: str) -> Any:
    """The tokenizer that goes with a name of NAMES."""
    origin, _, stem = name.partition(":")
    if origin == "tokenizer":
        assert REAL is not None
        return AutoTokenizer.from_pretrained(REAL / stem)
    return _family_tokenizer(family_of(stem))


@cache
def _family_tokenizer(family: Family) -> Any:
    base = _backend(family.base)
    # The model is nearly all of a tokenizer; it is shared, and what is added is each family's own.
    backend = Tokenizer(base.model)
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        if getattr(base, part) is not None:
            setattr(backend, part, getattr(base, part))
    backend.add_tokens([token for _, token in sorted(base.get_added_tokens_decoder().items())])
    words = [family.eos, *([family.bos] if family.bos else []), *family.special]
    marks = [AddedToken(word, special=True, normalized=False, rstrip=family.rstrip) for word in words]
    backend.add_special_tokens(marks)
    backend.add_tokens([AddedToken(word, special=False, normalized=False) for word in family.tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=family.eos, bos_token=family.bos, clean_up_tokenization_spaces=False
    )


@cache
def _backend(base: str) -> Tokenizer:
    if base in REAL_NAMES:
        backend: Tokenizer = tokenizer_of(f"tokenizer:{base}").backend_tokenizer
        return backend
    built: dict[str, Callable[[], Tokenizer]] = {"sentence_piece": sentence_piece, "llama_2": llama_2}
    return built.get(base, byte_level)()


@cache
def format_of(name: str, **options: Any) -> TemplateFormat:
    """The chat format for a name of NAMES. Raises ChatFormatError as it would in a run."""
    context = BuildContext("template", where="environments.default.chat_format", tokenizer=tokenizer_of(name))
    return TemplateFormat(TemplateOptions(chat_template=source_of(name), **options), context)
