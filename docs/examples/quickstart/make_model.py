"""Make the quickstart's model: a Qwen3 of 0.64M random parameters, and its tokenizer. Nothing is downloaded.

    python make_model.py DEST [--seed 0]

`rope_theta` 100 and `initializer_range` 0.06 are what lets so small a model learn to copy operands within a hundred
steps of fine-tuning; with the usual 10000 and 0.02 it takes several times as many. The tokenizer reads digits one by
one and has the chat and tool tags as single tokens.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512  # at most; so small a corpus has fewer merges
TAGS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CONTROLS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Tools are listed by name and parameters only: a full JSON Schema would be most of so small a model's prompt.
CHAT_TEMPLATE = """\
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


def texts(count: int) -> list[str]:
    """What the tokenizer learns its merges from: the shapes of prompts, calls and answers."""
    chance = random.Random(0)
    rows = []
    for _ in range(count):
        a, b, c = (chance.randrange(10, 1000) for _ in range(3))
        expression = chance.choice([f"{a} + {b}", f"{a} * {b}", f"{a} * {b} + {c}"])
        rows.append(f'{{"name": "calculator", "arguments": {{"expression": "{expression}"}}}}')
        rows.append(f"What is {expression}? {a * b}")
        rows.append("system\ntools: calculator(expression)\nuser\nassistant\ntool\n")
        rows.append(f"Tom packs {a} boxes with {b} pens each and adds {c} pens. How many pens are there in all?")
    return rows


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(CONTROLS) - len(TAGS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(500), trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAGS])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_model(tokenizer: transformers.PreTrainedTokenizerFast, seed: int) -> transformers.Qwen3ForCausalLM:
    """Qwen3 architecture, random weights."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = make_tokenizer()
    model = make_model(tokenizer, args.seed)
    model.save_pretrained(args.dest)
    tokenizer.save_pretrained(args.dest)
    print(f"{args.dest}: {sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters, {len(tokenizer)} tokens")


if __name__ == "__main__":
    main()
