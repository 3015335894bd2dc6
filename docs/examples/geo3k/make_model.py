"""Make a Qwen2.5-VL of 0.76M random parameters, with tokenizer and image processor.

python make_model.py DEST [--seed 0]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from small_models import (
    CONTROLS,
    TOOL_TAGS,
    VISION,
    VISION_TEMPLATE,
    phrase_tokenizer,
    qwen2_5_vl,
    save,
    where_and_seed,
)

PHRASES = (
    *TOOL_TAGS,
    '{"name": "calc_geo3k_reward", "arguments": {"answer": "', '"}}', "Current parsed answer=", " reward=",
    "How long is AB?", "\\boxed{", "user\n", "assistant\n", "tool\n",
)  # fmt: skip


def main() -> None:
    args = where_and_seed(__doc__)
    tokenizer = phrase_tokenizer(PHRASES, VISION_TEMPLATE, controls=(*CONTROLS, *VISION))
    save(args.dest, tokenizer, qwen2_5_vl(tokenizer, args.seed))


if __name__ == "__main__":
    main()
