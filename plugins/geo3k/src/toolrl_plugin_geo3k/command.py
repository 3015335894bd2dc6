"""`toolrl geo3k data`: the public data set as parquet files in verl's layout.

A file is written beside its place and moved there when it is whole; rows are written a few hundred at a time, since the
pictures of a split take hundreds of megabytes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toolrl.builtin.rows import JoinedRows, Row
from toolrl.errors import DataError
from toolrl.protocols import Command
from toolrl_plugin_geo3k.dataset import build_messages, read_row
from toolrl_plugin_geo3k.files import ENDINGS, images_of, open_split
from toolrl_plugin_geo3k.options import INSTRUCTION, SYSTEM_PROMPT
from toolrl_plugin_geo3k.tool import NAME
from toolrl_plugin_math.files import find_split

SOURCE = "hiyouga/geometry3k"
ROWS_AT_ONCE = 256


class Data(Command):
    """The command."""

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Add arguments."""
        parser.add_argument("source", type=Path, help="the data set's folder, as a hub or the library datasets has it")
        parser.add_argument("target", type=Path, help="the folder to write train.parquet, test.parquet … to")
        parser.add_argument(
            "--split", action="append", help="a split to write, may be repeated; else train, validation and test"
        )
        parser.add_argument("--limit", type=int, help="only the first so many problems of each split")
        parser.add_argument("--overwrite", action="store_true", help="replace files that are there")

    def run(self, args: argparse.Namespace) -> int:
        """Write the splits; returns the exit status."""
        splits = args.split or [split for split in ("train", "validation", "test") if _there(args.source, split)]
        if not splits:
            find_split(str(args.source), "train", endings=ENDINGS)  # raises with the places that were searched
        for split in splits:
            rows = open_split(str(args.source), split, args.limit)
            target = args.target / f"{split}.parquet"
            if target.exists() and not args.overwrite:
                raise DataError(f"{target} is there already", hint="Give --overwrite to replace it, or another folder.")
            args.target.mkdir(parents=True, exist_ok=True)
            write(rows, split, target)
            print(f"{target}: {len(rows)} problems")
        return 0


def _there(source: Path, split: str) -> bool:
    try:
        return bool(find_split(str(source), split, endings=ENDINGS)) and source.is_dir()
    except DataError:
        return False


def write(rows: JoinedRows, split: str, target: Path) -> None:
    """A split's rows as one parquet file."""
    import pyarrow
    from pyarrow import parquet

    part = target.with_name(f".{target.name}.part")
    # The types of an example: a batch may hold no image, and no path.
    schema = pyarrow.Table.from_pylist([verl_row("", 0, "", "", [{"bytes": b"", "path": ""}])]).schema
    try:
        with parquet.ParquetWriter(part, schema) as writer:
            for start in range(0, len(rows), ROWS_AT_ONCE):
                batch = list(converted(rows, split, range(start, min(start + ROWS_AT_ONCE, len(rows)))))
                writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
        part.replace(target)
    finally:
        with contextlib.suppress(OSError):  # The first error matters.
            part.unlink()


def converted(rows: JoinedRows, split: str, indices: range) -> Iterator[dict[str, Any]]:
    """Rows in verl's layout. Raises DataError for one that has no problem or no answer."""
    for index in indices:
        yield rows.read(index, functools.partial(_converted, split, index, rows.folder(index)))


def _converted(split: str, index: int, folder: Path, row: Row) -> dict[str, Any]:
    _, answer = read_row(row, "", None)
    problem, images = row.get("problem"), images_of(row, folder)
    if not isinstance(problem, str):
        raise DataError("the row is in verl's layout already", hint="Give the public data set's files.")
    return verl_row(split, index, problem, answer, [_stored(image.data) for image in images])


def verl_row(split: str, index: int, problem: str, answer: str, images: list[dict[str, Any]]) -> dict[str, Any]:
    """A problem in verl's layout."""
    messages = build_messages(problem, INSTRUCTION, SYSTEM_PROMPT)
    return {
        "data_source": SOURCE,
        "agent_name": "tool_agent",
        "prompt": [{"role": message.role, "content": message.content} for message in messages],
        "images": images,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": answer},
        "extra_info": {
            "split": split,
            "index": index,
            "answer": answer,
            "question": problem,
            "need_tools_kwargs": True,
            "tools_kwargs": {NAME: {"create_kwargs": {"ground_truth": answer}}},
        },
    }


def _stored(data: Any) -> dict[str, Any]:
    if isinstance(data, bytes):
        return {"bytes": data, "path": None}
    try:
        return {"bytes": Path(data).read_bytes(), "path": None}
    except OSError as error:
        raise DataError(f"the image {data} can't be read: {error.strerror}") from error
