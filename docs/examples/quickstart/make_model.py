"""Make the quickstart's model, a Qwen3 of 0.64M random parameters, and its tokenizer. Nothing is downloaded.

    python make_model.py DEST [--seed 0]

The tokenizer reads digits one by one and has the chat and tool tags as single tokens.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from small_models import learned_tokenizer, qwen3, save, where_and_seed


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
    return learned_tokenizer(texts(500))


def main() -> None:
    args = where_and_seed(__doc__)
    tokenizer = make_tokenizer()
    save(args.dest, tokenizer, qwen3(tokenizer, args.seed))


if __name__ == "__main__":
    main()
