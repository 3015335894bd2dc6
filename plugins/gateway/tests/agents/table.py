"""Writes the table of packages in docs/howto/train-your-own-agent.md from what test_packages.py has seen.

python table.py SEEN.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[4] / "docs" / "howto" / "train-your-own-agent.md"
START, END = "<!-- agents: made by `nox -s harnesses` -->\n", "<!-- end of agents -->\n"
HEAD = """
| package | version | program | trajectories | badly formatted turn | cut turn | refused request |
|---|---|---|---|---|---|---|
"""
KINDS = ("well", "bad", "cut", "refused")


def rows(lines: Iterable[str]) -> list[str]:
    """A row for each program that was played in all four ways."""
    seen: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        row = json.loads(line)
        seen.setdefault(row["name"], {})[row["kind"]] = row
    return [_row(kinds) for kinds in seen.values() if set(kinds) == set(KINDS)]


def _row(kinds: dict[str, dict[str, Any]]) -> str:
    well, bad, cut, refused = (kinds[kind] for kind in KINDS)
    cells = [f"`{well['package']}`", well["version"], f"`{well['program']}`", str(well["trajectories"])]
    cells.append("crashes" if bad["stop"] == "aborted" else "asks again" if bad["turns"] > 1 else "is the answer")
    cells += [f"`{cut['stop']}`", "fails, with the reason" if "refused" in (refused["failure"] or "") else "**lost**"]
    return f"| {' | '.join(cells)} |"


def main(seen: Path) -> None:
    """Replace the table. Programs that weren't played are left out."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    table = "\n".join(rows(seen.read_text(encoding="utf-8").splitlines()))
    PAGE.write_text(f"{before}{START}{HEAD}{table}\n\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
