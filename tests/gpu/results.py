"""What was found: one file of JSON, from which the tables are made anew after each part."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from settings import PARTS


@dataclass(frozen=True)
class Result:
    """Of one part."""

    status: str
    """ok, partial (goes on with the next call), skipped (can't be measured here) or failed."""
    seconds: float
    figures: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
    kind: str = ""
    """Of `Settings`: what it was measured on."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


class Results:
    """Of all parts, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.path, self.markdown_path = folder / "results.json", folder / "results.md"
        self._results: dict[str, Result] = {}
        if self.path.is_file():
            found = json.loads(self.path.read_text(encoding="utf-8"))
            self._results = {key: Result(**value) for key, value in found.items()}

    def foreign(self, kind: str) -> str | None:
        """Another kind of which results are there."""
        return next((it.kind for it in self._results.values() if it.kind not in ("", kind)), None)

    def done(self, key: str) -> bool:
        return key in self._results and self._results[key].status == "ok"

    def figures(self, key: str) -> dict[str, Any]:
        return self._results[key].figures if self.done(key) else {}

    def put(self, key: str, result: Result) -> None:
        """Keep a result, on the disk at once."""
        self._results[key] = result
        text = json.dumps({key: asdict(value) for key, value in self._results.items()}, indent=1)
        unfinished = self.path.with_suffix(".writing")
        unfinished.write_text(text + "\n", encoding="utf-8")
        unfinished.replace(self.path)
        self.markdown_path.write_text(self._markdown(), encoding="utf-8")

    def headline(self, key: str) -> str:
        """One line."""
        result = self._results[key]
        if not result.figures:
            return result.reason.strip().splitlines()[0] if result.reason else ""
        line: str = self._module(key).headline(result.figures)
        return f"{line} ({result.reason})" if result.reason else line

    def _module(self, key: str) -> Any:
        return importlib.import_module(PARTS[key.partition(":")[0]].module)

    def _markdown(self) -> str:
        blocks = ["# Measured on a GPU", ""]
        for name in PARTS:
            for key in (key for key in self._results if key.partition(":")[0] == name):
                result = self._results[key]
                blocks += [f"## {key.replace(':', ', ')}", "", f"{result.status}, {result.seconds:.0f} s", ""]
                if result.reason:
                    blocks += ["```", result.reason.strip(), "```", ""]
                if result.figures:
                    blocks += tables(result.figures)
        return "\n".join(blocks)


def tables(figures: dict[str, Any]) -> list[str]:
    """Figures as Markdown: a table of the single ones by their path, and one for each list of rows."""
    single: list[dict[str, Any]] = []
    lists: list[str] = []

    def add(path: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                add(f"{path} {name}".strip(), inner)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            lists.extend(_table([_flat(row) for row in value]))
        else:
            single.append({"figure": path, "value": value})

    add("", figures)
    return [*(_table(single) if single else []), *lists]


def _flat(row: dict[str, Any], path: str = "") -> dict[str, Any]:
    """A row whose mappings are columns of their own."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        found |= _flat(value, f"{path}{name} ") if isinstance(value, dict) else {path + name: value}
    return found


def _table(rows: list[dict[str, Any]]) -> list[str]:
    """Rows as a table. Numbers are shortened, what is None or missing is left empty."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    return [*lines, *(f"| {' | '.join(_cell(row.get(name)) for name in names)} |" for row in rows), ""]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value).replace("|", "/").replace("\n", " ")
