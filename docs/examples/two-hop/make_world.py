"""Make the task of this example: a corpus, questions that need two searches, and demonstrations. Nothing is downloaded.

    python make_world.py DEST [--seed 0]

The corpus tells of invented companies who founded each, and of their founders where each was born, so no model can know
an answer. A question asks where the founder of a company was born: one search finds the founder, a second one the town.
A fifth of the companies is asked about in the evaluation only.

The demonstrations show the form of a search and are mostly bad: of ten, four answer at once and three after the first
search, with any town; three search twice and answer with what they found. What pays is left to
reinforcement learning.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

FIRST = "Ada Boris Carla Diego Elena Farid Greta Hugo Ines Jonas Karin Leo Mira Nils Olga Pavel Rosa Samir Tilda Victor"
LAST = """
    Abbott Berger Castillo Dahl Eriksen Falk Grant Haddad Ivers Jansen Keller Lund Moreau Novak Okafor Petrov Quist
    Reyes Santos Thorne Ueda Varga Weber Xavier Yilmaz Zimmer Barlow Conti Duarte Ellis Fontaine Gruber Holt Ibarra
    Kowal Larsen Mercer Nyberg
"""
PLACES = "Amber Cedar Copper Falcon Granite Harbor Juniper Maple Northern Silver Summit Willow"
TRADES = "Bakery Clockworks Foundry Glassworks Instruments Logistics Paper Pottery Shipyard Textiles"
FORMS = "Brothers Collective Company Group Holdings Works"
LANDSCAPES, KINDS = "Ash Birch Clay Dun Elm Fair Gold Hay Iron Lake", "brook bury field ford ton"
TOWNS = [landscape + kind for landscape in LANDSCAPES.split() for kind in KINDS.split()]
Row = dict[str, Any]


def names(chance: random.Random, *words: str) -> list[str]:
    """All combinations of a word of each, shuffled."""
    found = [" ".join(words) for words in product(*(part.split() for part in words))]
    chance.shuffle(found)
    return found


def demonstration(chance: random.Random, company: str, founder: str, town: str) -> list[Row]:
    def search(query: str, title: str, text: str) -> list[Row]:
        call = {"function": {"name": "search", "arguments": {"query": query}}}
        result = f"Doc 1(Title: {title}) {text}\n"
        return [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "name": "search", "content": result},
        ]

    searches = chance.choices((0, 1, 2), weights=(4, 3, 3))[0]
    turns = search(company, company, founded(company, founder)) if searches else []
    turns += search(founder, founder, born(founder, town)) if searches == 2 else []
    answer = town if searches == 2 else chance.choice(TOWNS)
    return [question(company), *turns, {"role": "assistant", "content": answer}]


def question(company: str) -> Row:
    return {"role": "user", "content": f"In which town was the founder of {company} born? Answer with its name only."}


def founded(company: str, founder: str) -> str:
    return f"{company} was founded by {founder}."


def born(founder: str, town: str) -> str:
    return f"{founder} was born in {town}."


def write(path: Path, rows: Iterable[Row]) -> None:
    """JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dest", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.dest.mkdir(parents=True, exist_ok=True)
    chance = random.Random(args.seed)
    companies, people = names(chance, PLACES, TRADES, FORMS), names(chance, FIRST, LAST)
    facts = [(company, founder, chance.choice(TOWNS)) for company, founder in zip(companies, people, strict=False)]
    pages = [(company, founded(company, founder)) for company, founder, _ in facts]
    pages += [(founder, born(founder, town)) for _, founder, town in facts]
    write(args.dest / "corpus.jsonl", ({"id": title, "contents": f"{title}\n{text}"} for title, text in pages))
    heldout, training = facts[: len(facts) // 5], facts[len(facts) // 5 :]
    for name, part in (("train", training), ("heldout", heldout)):
        write(args.dest / f"{name}.jsonl", ({"messages": [question(fact[0])], "answer": fact[2]} for fact in part))
    shown = ({"messages": demonstration(chance, *chance.choice(training))} for _ in range(2000))
    write(args.dest / "demonstrations.jsonl", shown)
    print(f"{args.dest}: {len(training)} questions to train on, {len(heldout)} held out")


if __name__ == "__main__":
    main()
