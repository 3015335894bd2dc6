"""Make the tasks of the compaction example: three fractions, rounded to two digits.

    python make_data.py DEST [--seed 0]

Writes train.jsonl, test.jsonl and demos.jsonl. Half of the demonstrations end with a summary of the first two results.
Six of ten of these say what was found; the others repeat what was asked for, which is of no use. The other half go on
from a good summary.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from pathlib import Path
from typing import Any

from toolrl_plugin_calculator.evaluate import ExpressionEvaluator
from toolrl_plugin_calculator.options import CalculatorOptions

PRECISION = 2
"""Digits of a result, as in the configs."""
GOOD = 0.6
"""Share of the summaries that are of use."""
PRIMES = (13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
"""Of fractions over these no result is a whole number."""
_evaluate = ExpressionEvaluator(CalculatorOptions(precision=PRECISION))


def fractions(chance: random.Random, *, held_out: bool) -> list[str]:
    """Three of them. A tenth of all is held out, by a hash."""
    while True:
        below = [chance.choice(PRIMES) for _ in range(3)]
        found = [f"{chance.randrange(10, it)} / {it}" for it in below]
        if (hashlib.sha256(" ".join(found).encode()).digest()[0] < 26) == held_out:
            return found


def question(found: list[str]) -> str:
    return f"What is {', '.join(found)}?"


def call(fraction: str) -> list[dict[str, Any]]:
    """A call and its result."""
    called = {"name": "calculator", "arguments": {"expression": fraction}}
    return [
        {"role": "assistant", "content": "", "tool_calls": [{"function": called}]},
        {"role": "tool", "content": _evaluate(fraction), "name": "calculator"},
    ]


def demonstration(chance: random.Random) -> list[dict[str, Any]]:
    """A conversation up to its summary, or one behind a summary."""
    found = fractions(chance, held_out=False)
    answers = [_evaluate(it) for it in found]
    if chance.random() < 0.5:
        told = f"{question(found)}\n\nSo far: {answers[0]} {answers[1]}"
        return [{"role": "user", "content": told}, *call(found[2]), {"role": "assistant", "content": " ".join(answers)}]
    good = chance.random() < GOOD
    summary = answers[:2] if good else [it.split()[0] for it in found[:2]]
    return [
        {"role": "user", "content": question(found)},
        *call(found[0]),
        *call(found[1]),
        {"role": "user", "content": "Sum up."},
        {"role": "assistant", "content": " ".join(summary)},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance = random.Random(args.seed)
    args.dest.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", 4000), ("test", 128)):
        tasks = [fractions(chance, held_out=name == "test") for _ in range(count)]
        write(args.dest / f"{name}.jsonl", [task(it) for it in tasks])
    write(args.dest / "demos.jsonl", [{"messages": demonstration(chance)} for _ in range(20_000)])


def task(found: list[str]) -> dict[str, Any]:
    prompt = [{"role": "user", "content": question(found)}]
    return {"messages": prompt, "answer": " ".join(map(_evaluate, found))}


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


if __name__ == "__main__":
    main()
