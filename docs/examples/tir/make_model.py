"""Make a Qwen3 of 0.6M random parameters and its tokenizer: `python make_model.py DEST [--seed 0]`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from small_models import TEXT_TEMPLATE, phrase_tokenizer, qwen3, save, where_and_seed

PHRASES = (
    "```python\nprint(", ")\n```", "\n```output\n", "\n```\n", "<calculator>", "</calculator>", "\\boxed{", "What is ",
    " + ", " * ", "user\n", "assistant\n",
)  # fmt: skip


def main() -> None:
    args = where_and_seed(__doc__)
    tokenizer = phrase_tokenizer(PHRASES, TEXT_TEMPLATE)
    save(args.dest, tokenizer, qwen3(tokenizer, args.seed))


if __name__ == "__main__":
    main()
