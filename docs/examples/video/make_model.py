"""Make a Qwen2.5-VL of 0.8M random parameters, with tokenizer and image processor.

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
    *TOOL_TAGS, "}}", "user\n", "assistant\n", "tool\n",
    '{"name": "extract_frames", "arguments": {"seconds": [', "]}}", "frame 0 at ", ".0 s: ",
    '{"name": "detect_objects", "arguments": {"frame": ', '{"name": "caption_frame", "arguments": {"frame": ',
    '{"name": "check_answer", "arguments": {"answer": "', '"}}', "That is right.", "That is wrong.",
    "Which shape comes after the one at second ", "Which colour comes after the one at second ",
    "square", "circle", "triangle", "bar", "red", "green", "blue", "yellow", "black", "pink",
)  # fmt: skip


def main() -> None:
    args = where_and_seed(__doc__)
    tokenizer = phrase_tokenizer(PHRASES, VISION_TEMPLATE, controls=(*CONTROLS, *VISION))
    save(args.dest, tokenizer, qwen2_5_vl(tokenizer, args.seed))


if __name__ == "__main__":
    main()
