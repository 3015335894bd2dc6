"""Finds out what wrote a file or a folder, and reads it a row at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolrl.errors import DataError
from toolrl.runs.files import read_lines
from toolrl.runs.folder import is_run_folder
from toolrl_plugin_audit.formats import flat, prime, toolrl_run
from toolrl_plugin_audit.rows import Row

LOOKED_FOR = (
    "Looked for: a run folder of toolrl's (config.yaml, episodes/), verl's <step>.jsonl of trainer.rollout_data_dir "
    "(keys input, output, score), TRL's completions/completions_<step>.parquet (columns prompt, completion), "
    "prime-rl's rollouts/step_<n>/train_rollouts.jsonl, verifiers' results.jsonl."
)
_NAMES = {"verl": "verl", "trl": "TRL", "prime": "prime-rl"}


class Files:
    """Dumps of another system."""

    max_staleness = prime.MAX_OFF_POLICY_STEPS

    def __init__(self, root: Path, paths: list[tuple[Path, str]], tools: tuple[str, ...] | None) -> None:
        self._root = root
        self._paths = paths
        self._tools = tools
        self.name = "rollouts of " + " and ".join(_NAMES[it] for it in sorted({name for _, name in paths}))

    def files(self) -> Iterator[Iterator[Row]]:
        for path, name in self._paths:
            yield self._rows(path, name)

    def _rows(self, path: Path, name: str) -> Iterator[Row]:
        shown = str(path.relative_to(self._root)) if path != self._root else path.name
        table = path.suffix == ".parquet"
        val = any(part.startswith("val") for part in Path(shown).parts) or path.parent.name.startswith("val")
        for number, record in enumerate(records(path), start=1):
            place = f"{shown}, row {number - 1}" if table else f"{shown}:{number}"
            if not isinstance(record, dict):
                raise DataError("a line isn't an object", where=f"{path}:{number}")
            if name == "prime":
                yield prime.prime_row(record, place, path, self._tools)
            else:
                yield flat.flat_row(record, place, trl=name == "trl", offered=self._tools, val=val)


def records(path: Path) -> Iterator[Any]:
    """The records of a file. A last line that a kill tore is left out. Raises DataError."""
    try:
        if path.suffix == ".parquet":
            yield from flat.parquet_rows(path)
            return
        with path.open("rb") as file:
            yield from read_lines(file, str(path))
    except (OSError, ValueError) as error:  # Arrow's errors are ValueErrors.
        raise DataError(f"this file can't be read: {error}", where=str(path)) from error


def open_dump(path: Path, tools: tuple[str, ...] | None = None) -> tuple[Files | toolrl_run.ToolrlRun, list[str]]:
    """What is at a path, and remarks on what was passed over. Raises DataError where it is no format that is known."""
    if not path.exists():
        raise DataError("there is no such file or folder", where=str(path), hint=LOOKED_FOR)
    if is_run_folder(path) and ((path / "episodes").exists() or (path / "plugins.json").exists()):
        return toolrl_run.ToolrlRun(path), []
    candidates = [path] if path.is_file() else sorted(filter(_is_candidate, path.rglob("*")), key=_natural)
    formats = [(it, _format(it)) for it in candidates]
    known = [(it, name) for it, name in formats if name]
    if not known:
        raise DataError("there are no rollouts of a format that is known", where=str(path), hint=LOOKED_FOR)
    foreign = ", ".join(it.name for it, name in formats if not name)
    return Files(path, known, tools), [f"Left out, as they hold no rollouts: {foreign}."] if foreign else []


def _is_candidate(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts[-3:])
    return path.is_file() and path.suffix in (".jsonl", ".parquet") and not hidden


def _natural(path: Path) -> list[tuple[int, str]]:
    """Files by the numbers in their names: step 2 before step 10."""
    return [(int(it), "") if it.isdigit() else (0, it) for it in re.split(r"(\d+)", str(path))]


def _format(path: Path) -> str:
    """`verl`, `trl` or `prime`; "" for what is none of them, or can't be read."""
    try:
        record = next(records(path), None)
    except DataError:
        return ""
    if flat.is_verl(record):
        return "verl"
    if prime.is_prime(record):
        return "prime"
    return "trl" if flat.is_trl(record) else ""
