"""One table of what `nox -s bench` measured.

    python tests/benchmarks/summary.py benchmarks

Reads the JSON files of a folder and prints every ratio and slope in them with the path to it, file by file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

WORDS = ("ratio", "slope", "cpu_us", "tokens_per_second")


def figures(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    """Numbers whose own name, or that of a mapping they stand in, holds one of the words."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from figures(item, (*path, str(key)))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if any(word in part for part in path for word in WORDS):
            yield " / ".join(path), float(value)
    elif isinstance(value, list):
        rows = [item for item in value if isinstance(item, dict)]
        for number, row in enumerate(rows):
            label = next((str(item) for item in row.values() if isinstance(item, str)), str(number))
            yield from figures(row, (*path, label))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the JSON files are")
    options = parser.parse_args(argv)
    files = sorted(options.folder.glob("*.json"))
    if not files:
        print(f"{options.folder} holds no JSON files", file=sys.stderr)
        return 1
    for file in files:
        rows = list(figures(json.loads(file.read_text(encoding="utf-8"))))
        if rows:
            print(f"\n{file.stem}\n")
        for path, number in rows:
            print(f"  {path:70} {number:10.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
