"""Finds out what wrote a file or a folder, and reads it a row at a time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

from toolrl.errors import DataError
from toolrl.runs.files import read_lines
from toolrl.runs.folder import is_run_folder
from toolrl_plugin_audit.formats import binary, flat, prime, toolrl_run
from toolrl_plugin_audit.rows import Row

LOOKED_FOR = (
    "Looked for: a run folder of toolrl's (config.yaml, episodes/), verl's <step>.jsonl of trainer.rollout_data_dir "
    "(keys input, output, score), TRL's completions/completions_<step>.parquet (columns prompt, completion), "
    "prime-rl's rollouts/step_<n>/train_rollouts.jsonl or rollouts.bin, verifiers' results.jsonl."
)
_PACKED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
_SUFFIXES = (".jsonl", *(f".jsonl{suffix}" for suffix in _PACKED), ".parquet", "rollouts.bin")


class Dump(Protocol):
    """What an audit reads."""

    name: str
    """Of the format, for the report."""
    lacks: dict[str, str]
    """By check, why rows can't be checked."""
    exact: bool
    """Whether equal rewards have to give equal advantages."""
    max_staleness: int | None

    def files(self) -> Iterator[Iterator[Row]]:
        """The rows of each file."""
        ...


class Files:
    """Dumps of another system."""

    def __init__(self, root: Path, paths: list[tuple[Path, str]], tools: tuple[str, ...] | None) -> None:
        self._root = root
        self._paths = paths
        self._tools = tools
        formats = {name for _, name in paths}
        self.name = " and ".join(
            {"verl": "verl", "trl": "TRL", "prime": "prime-rl", "bin": "prime-rl"}[it] for it in sorted(formats)
        )
        self.name = "rollouts of " + " and ".join(dict.fromkeys(self.name.split(" and ")))
        lacks = {"verl": flat.LACKS_VERL, "trl": flat.LACKS_TRL, "prime": prime.LACKS, "bin": binary.LACKS}
        self.lacks = {key: value for name in sorted(formats) for key, value in lacks[name].items()}
        self.exact = formats == {"trl"}
        self.max_staleness: int | None = prime.max_off_policy_steps(root)

    def files(self) -> Iterator[Iterator[Row]]:
        for path, name in self._paths:
            yield self._rows(path, name)

    def _rows(self, path: Path, name: str) -> Iterator[Row]:
        shown = str(path.relative_to(self._root)) if path != self._root else path.name
        if name == "bin":
            yield from binary.binary_rows(path, shown)
            return
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
    if path.suffix == ".parquet":
        import pyarrow

        try:
            yield from flat.parquet_rows(path)
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"this parquet file can't be read: {error}", where=str(path),
                hint="A kill while it was written leaves half of one: delete or move it to continue without it.",
            ) from error  # fmt: skip
        return
    try:
        with _opened(path) as file:
            yield from read_lines(file, str(path))
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"this file can't be read: {type(error).__name__}: {error}", where=str(path)) from error


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    with _PACKED.get(path.suffix, open)(path, "rb") as file:  # type: ignore[operator]
        yield file


def open_dump(path: Path, tools: tuple[str, ...] | None = None) -> tuple[Dump, list[str]]:
    """What is at a path, and remarks on what was passed over. Raises DataError where it is no format that is known."""
    if not path.exists():
        raise DataError("there is no such file or folder", where=str(path), hint=LOOKED_FOR)
    run = path.parent if path.name == "episodes" and is_run_folder(path.parent) else path
    if is_run_folder(run) and ((run / "episodes").exists() or (run / "plugins.json").exists()):
        return toolrl_run.open_run(run), [toolrl_run.NO_ADVANTAGES]
    inside = sorted(it.name for it in path.iterdir() if is_run_folder(it)) if path.is_dir() else []
    if inside and (path / inside[0] / "episodes").exists():
        raise DataError("this folder holds several runs", where=str(path), hint=f"Name one: {', '.join(inside[:8])}.")
    candidates = [path] if path.is_file() else sorted((it for it in path.rglob("*") if _candidate(it)), key=_natural)
    sorts: dict[str, list[tuple[Path, str]]] = {"": [], "empty": [], "toolrl": []}
    known: list[tuple[Path, str]] = []
    for it in candidates:
        name = _format(it)
        sorts.get(name, known).append((it, name))
    foreign, empty, own = sorts.values()
    if own and not known:
        raise DataError(
            "these are episodes of a run of toolrl's without their run", where=str(own[0][0]),
            hint="Name the run's folder, which holds config.yaml.",
        )  # fmt: skip
    if not known:
        raise DataError(_nothing(path, foreign, empty), where=str(path), hint=LOOKED_FOR)
    if any(name == "prime" for _, name in known):  # The same rollouts, as the trainer got them.
        known = [it for it in known if it[1] != "bin" or not (it[0].parent / "train_rollouts.jsonl").exists()]
    named = ", ".join(it.name for it, _ in foreign[:5]) + (", …" if foreign[5:] else "")
    notes = [f"Left out, as they hold no rollouts that can be read: {named}."] if foreign else []
    notes += [f"Empty: {', '.join(it.name for it, _ in empty[:5])}."] if empty else []
    return Files(path, known, tools), notes


def _candidate(path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.parts[-3:])
    return path.is_file() and path.name.endswith(_SUFFIXES) and not hidden


def _natural(path: Path) -> list[tuple[int, str]]:
    """Files by the numbers in their names: step 2 before step 10."""
    return [(int(it), "") if it.isdigit() else (0, it) for it in re.split(r"(\d+)", str(path))]


def _nothing(path: Path, foreign: list[tuple[Path, str]], empty: list[tuple[Path, str]]) -> str:
    if path.is_file():
        return "this file is empty" if empty else "this file holds no rollouts of a format that is known"
    if empty and not foreign:
        return f"the files here are empty: {', '.join(it.name for it, _ in empty[:5])}"
    seen = (
        f" ({', '.join(it.name for it, _ in foreign[:5])} {'is none' if len(foreign) == 1 else 'are none'})"
        if foreign
        else ""
    )
    return f"there are no rollouts in this folder{seen}"


def _format(path: Path) -> str:
    """`verl`, `trl`, `prime`, `bin` or `toolrl`; `empty`, or "" for what is none of them."""
    if path.suffix == ".bin":
        return "bin" if binary.is_batch(path) else ""
    if path.suffix == ".parquet":
        return _table_format(path)
    try:
        record = next(records(path), None)
    except DataError:
        return ""
    if record is None:
        return "empty" if path.stat().st_size == 0 or path.suffix in _PACKED else ""
    if toolrl_run.describe_record(record):
        return "toolrl"
    if flat.is_verl(record):
        return "verl"
    if prime.is_prime(record):
        return "prime"
    return "trl" if isinstance(record, dict) and flat.is_trl(list(record)) else ""


def _table_format(path: Path) -> str:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        names = parquet.read_schema(path).names
    except (pyarrow.ArrowException, OSError):
        return ""  # A kill while it was written leaves half of one.
    if flat.is_trl(names):
        return "trl"
    return "verl" if "input" in names and "output" in names else ""
