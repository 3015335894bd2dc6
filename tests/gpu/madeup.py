"""Problems in the form of GSM8K for the dry run, short enough for its model."""

from __future__ import annotations

import json
import random
from pathlib import Path


def write(folder: Path) -> Path:
    """train.jsonl and test.jsonl; the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 64), ("test", 8)):
        chance = random.Random(split)
        rows = [json.dumps(_problem(chance)) for _ in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    return folder


def _problem(chance: random.Random) -> dict[str, str]:
    a, b, c = (chance.randrange(2, 30) for _ in range(3))
    return {
        "question": f"{a} boxes, {b} pens each, {c} more. How many?",
        "answer": f"{a}*{b} = <<{a}*{b}={a * b}>>{a * b}.\n{a * b}+{c} = <<{a * b}+{c}={a * b + c}>>{a * b + c}.\n"
        f"#### {a * b + c}",
    }
