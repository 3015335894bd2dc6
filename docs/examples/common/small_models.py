"""The small models of the examples, with random weights, and their tokenizers. Nothing is downloaded.

So small a model learns to copy within a hundred steps of fine-tuning with a `rope_theta` of 100 and an
`initializer_range` of 0.06; with the usual 10000 and 0.02 it takes several times as many.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOOL_TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
VOCABULARY = 512
"""Tokens of `learned_tokenizer` at most; so small a corpus has fewer merges."""

# Tools are listed by name and parameters only: a full JSON Schema would be most of so small a model's prompt.
TOOL_TEMPLATE = """\
{%- if tools %}<|im_start|>system
tools:{% for tool in tools %} {{ tool.function.name }}({{ tool.function.parameters.properties | join(', ') }})\
{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
<|im_start|>tool
<tool_response>{{ message.content }}</tool_response><|im_end|>
{% else -%}
<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", \
"arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
TEXT_TEMPLATE = """\
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
VISION_TEMPLATE = """\
{%- if tools %}<|im_start|>{% for tool in tools %}{{ tool.function.name }}{% endfor %}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.role == 'tool' %}<tool_response>{% endif %}\
{%- if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
{%- if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}\
{%- endfor %}{% endif %}\
{%- for call in message.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", \
"arguments": {{ call.function.arguments | tojson }}}</tool_call>{% endfor %}\
{%- if message.role == 'tool' %}</tool_response>{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""


def phrase_tokenizer(
    phrases: Sequence[str], template: str, *, controls: Sequence[str] = CONTROLS
) -> transformers.PreTrainedTokenizerFast:
    """Bytes, and whole phrases of an episode, so that episodes of so small a model are short."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return _finished(tokenizer, controls, phrases, template)


def learned_tokenizer(
    texts: Iterable[str], *, isolated: str = r"\d", more: Sequence[str] = ()
) -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE of some texts. What `isolated` matches is read by itself, digits one by one; the tool tags and
    `more` are tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(isolated), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tags = (*TOOL_TAGS, *more)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(CONTROLS) - len(tags),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _finished(tokenizer, CONTROLS, tags, TOOL_TEMPLATE)


def _finished(
    tokenizer: Tokenizer, controls: Sequence[str], tags: Sequence[str], template: str
) -> transformers.PreTrainedTokenizerFast:
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in tags])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def qwen3(tokenizer: transformers.PreTrainedTokenizerFast, seed: int) -> transformers.Qwen3ForCausalLM:
    """A Qwen3 of some 0.6M parameters."""
    torch.manual_seed(seed)
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.06,
        rope_parameters={"rope_type": "default", "rope_theta": 100.0},
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.Qwen3ForCausalLM(config)


def qwen2_5_vl(
    tokenizer: transformers.PreTrainedTokenizerFast, seed: int
) -> transformers.Qwen2_5_VLForConditionalGeneration:
    """A Qwen2.5-VL of some 0.8M parameters. Its tokenizer has the tokens of `VISION`."""
    torch.manual_seed(seed)
    names = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
    ids = {name: tokenizer.convert_tokens_to_ids(token) for name, token in zip(names, VISION, strict=True)}
    text = {
        "vocab_size": len(tokenizer), "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3,
        "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 512, "initializer_range": 0.06,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "mrope_section": [4, 6, 6]},
        "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": None,
    }  # fmt: skip
    vision = {
        "depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 128,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
        "fullatt_block_indexes": [0], "initializer_range": 0.06,
    }  # fmt: skip
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **ids)
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def save(folder: Path, tokenizer: Any, model: Any) -> None:
    """In Hugging Face layout; a model that sees gets the settings of its image processor too."""
    transformers.utils.logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if hasattr(model.config, "vision_config"):
        size = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 64}
        settings = {"image_processor_type": "Qwen2VLImageProcessor", "size": size, "patch_size": 14, "merge_size": 2}
        (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
    millions = sum(weight.numel() for weight in model.parameters()) / 1e6
    print(f"{folder}: {millions:.2f}M parameters, {len(tokenizer)} tokens")


def where_and_seed(description: str | None) -> argparse.Namespace:
    """The command line of a script that makes a model: `DEST [--seed 0]`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()
