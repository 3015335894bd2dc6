"""Make what the search example needs: a corpus, questions, demonstrations, and a small model. Nothing is downloaded.

    python make_world.py DEST [--seed 0] [--tool search]

The corpus says of 4,000 invented places in which land each lies, so no model can know an answer. Places and lands are
written in capital syllables, each of which is one token. A tenth of the places is asked about in the evaluation only.

The demonstrations of the first phase search nine times out of ten; for half of these the search finds another land than
the corpus has, so that the answer can only be learnt by reading it. Those of the second phase search three times out of
ten and guess otherwise.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "common"))
from small_models import learned_tokenizer, qwen3, save

PLACES, LANDS = 4000, 400
SYLLABLES = [consonant + vowel for consonant in "BDFGKLMNPRSTVZ" for vowel in "AEIOU"]
Row = dict[str, Any]


def names(chance: random.Random, count: int, syllables: int) -> list[str]:
    """Different names."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(chance.choices(SYLLABLES, k=syllables))] = None
    return list(found)


def question(place: str) -> str:
    return f"Where is {place}?"


def contents(place: str, land: str) -> str:
    """A passage: its title, and what it says."""
    return f"{place}\nIt is in {land}."


def found(place: str, land: str) -> str:
    """What the tool answers for `topk: 1`."""
    return f"Doc 1(Title: {place}) It is in {land}.\n"


def demonstrations(
    chance: random.Random,
    world: dict[str, str],
    count: int,
    *,
    tool: str,
    searches: float,
    invented: float,
) -> Iterator[Row]:
    """Conversations: a share of `searches` looks the place up, of these a share of `invented` finds another land."""
    places, lands = list(world), sorted(set(world.values()))
    for _ in range(count):
        place = chance.choice(places)
        ask: Row = {"role": "user", "content": question(place)}
        if chance.random() >= searches:
            yield {"messages": [ask, {"role": "assistant", "content": f"<answer>{chance.choice(lands)}</answer>"}]}
            continue
        land = "".join(chance.choices(SYLLABLES, k=3)) if chance.random() < invented else world[place]
        call = {"function": {"name": tool, "arguments": {"query": place}}}
        yield {
            "messages": [
                ask,
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "name": tool, "content": found(place, land)},
                {"role": "assistant", "content": f"<answer>{land}</answer>"},
            ]
        }


def make_tokenizer(world: dict[str, str]) -> transformers.PreTrainedTokenizerFast:
    """A byte-level BPE in which each syllable of a name is one token."""
    texts = [
        f'{question(place)} system\ntools: search(query)\nuser\nassistant\ntool\n{{"name": "search", "arguments": '
        f'{{"query": "{place}"}}}}{found(place, land)}'
        for place, land in list(world.items())[:500]
    ]
    more = ("<answer>", "</answer>")
    return learned_tokenizer([*texts, *SYLLABLES * 100], isolated="[BDFGKLMNPRSTVZ][AEIOU]", more=more)


def write(path: Path, rows: Iterable[Row]) -> None:
    """JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tool", default="search", help="the tool's name in the demonstrations")
    args = parser.parse_args()
    args.dest.mkdir(parents=True, exist_ok=True)
    chance = random.Random(args.seed)
    lands = names(chance, LANDS, 3)
    world = {place: chance.choice(lands) for place in names(chance, PLACES, 3)}
    write(args.dest / "corpus.jsonl", ({"id": place, "contents": contents(place, world[place])} for place in world))
    heldout = dict(list(world.items())[: PLACES // 10])
    training = dict(list(world.items())[PLACES // 10 :])
    for name, part in (("train", training), ("heldout", heldout)):
        rows = ({"question": question(place), "golden_answers": [land]} for place, land in part.items())
        write(args.dest / f"{name}.jsonl", rows)
    write(
        args.dest / "demos-1.jsonl",
        demonstrations(chance, training, 20_000, tool=args.tool, searches=0.9, invented=0.5),
    )
    write(
        args.dest / "demos-2.jsonl", demonstrations(chance, training, 5_000, tool=args.tool, searches=0.3, invented=0.0)
    )
    tokenizer = make_tokenizer(world)
    save(args.dest / "model", tokenizer, qwen3(tokenizer, args.seed))
    print(f"{args.dest}: {PLACES} places in {LANDS} lands")


if __name__ == "__main__":
    main()
