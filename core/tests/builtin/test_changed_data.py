"""Data that is changed while a run reads it, or before it is resumed."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.builtin import datasets, rows
from toolrl.builtin.options import FileDatasetOptions
from toolrl.errors import DataError
from toolrl.loop import data_state
from toolrl.loop.data import CheckedTasks, GoodTasks, data_digest
from toolrl.loop.data_state import WatchedFile
from toolrl.protocols import BuildContext
from toolrl.python_objects import _rows
from toolrl.types import Message, Task

ROWS = [{"prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(10, 20)]
OTHERS = [{**row, "answer": "99"} for row in ROWS]
"""As many bytes."""


def save(path: Path, items: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(items), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(items))
    else:
        path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def tasks(path: Path, **options: Any) -> CheckedTasks:
    source = datasets.jsonl(FileDatasetOptions(path=str(path), **options), BuildContext("jsonl", "data.train"))
    checked = CheckedTasks(source, {"default": None}, "data.train")
    assert len(checked) == 10
    return checked


def rewrite(path: Path) -> None:
    save(path, OTHERS)


def replace(path: Path) -> None:
    save(path.with_stem("new"), OTHERS).replace(path)


def replace_with_its_times(path: Path) -> None:
    before = path.stat()
    replace(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def rewrite_with_its_times(path: Path) -> None:
    before = path.stat()
    rewrite(path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def append(path: Path) -> None:
    save(path, [*ROWS, *OTHERS])


def shorten(path: Path) -> None:
    save(path, ROWS[:3])


def truncate(path: Path) -> None:
    path.write_bytes(b"")


def delete(path: Path) -> None:
    path.unlink()


def touch(path: Path) -> None:
    os.utime(path, (0, 0))


def copy_over_itself(path: Path) -> None:
    save(path, ROWS)


def replace_by_a_copy(path: Path) -> None:
    copy = path.with_stem("copy")
    copy.write_bytes(path.read_bytes())
    copy.replace(path)


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
class TestDuringARun:
    @pytest.mark.parametrize(
        "change",
        [rewrite, replace, rewrite_with_its_times, replace_with_its_times, append, shorten, truncate, delete],
    )
    @pytest.mark.parametrize("read_before", [True, False])
    def test_a_changed_file_stops_it(
        self, tmp_path: Path, ending: str, change: Callable[[Path], None], read_before: bool
    ) -> None:
        path = save(tmp_path / f"train.{ending}", ROWS)
        found = GoodTasks(tasks(path), "data.train") if read_before else tasks(path)
        change(path)
        with pytest.raises(DataError, match=r"train\.\w+: the file was (changed|deleted) during the run"):
            found[5]

    @pytest.mark.parametrize("keep", [touch, copy_over_itself, replace_by_a_copy])
    def test_one_with_the_same_bytes_goes_on(self, tmp_path: Path, ending: str, keep: Callable[[Path], None]) -> None:
        path = save(tmp_path / f"train.{ending}", ROWS)
        found = tasks(path)
        keep(path)
        assert [found[index].answer for index in range(10)] == [row["answer"] for row in ROWS]

    def test_a_copy_in_another_process_notices_too(self, tmp_path: Path, ending: str) -> None:
        path = save(tmp_path / f"train.{ending}", ROWS)
        joined = rows.JoinedRows([rows.open_rows(path)])
        assert joined[0] == ROWS[0]
        copied = pickle.loads(pickle.dumps(joined))
        rewrite(path)
        with pytest.raises(DataError, match="changed during the run"):
            copied[1]


@pytest.mark.parametrize("ending", ["jsonl", "json", "parquet"])
def test_a_digest_tells_other_rows(tmp_path: Path, ending: str) -> None:
    given = data_digest(tasks(save(tmp_path / f"a.{ending}", ROWS)))
    (tmp_path / "elsewhere").mkdir()
    assert data_digest(tasks(save(tmp_path / "elsewhere" / f"b.{ending}", ROWS))) == given
    one_changed = [*ROWS[:7], OTHERS[7], *ROWS[8:]]
    others = [OTHERS, [*ROWS, *ROWS], one_changed, list(reversed(ROWS))]
    found = {
        data_digest(tasks(save(tmp_path / f"{number}.{ending}", items), limit=10))
        for number, items in enumerate(others)
    }
    assert len(found | {given}) == 5
    assert None not in found


def _given(kind: str, items: list[dict[str, Any]]) -> Any:
    if kind == "tasks":
        return [Task(str(n), (Message("user", row["prompt"]),), answer=row["answer"]) for n, row in enumerate(items)]
    if kind == "pandas":
        return pytest.importorskip("pandas").DataFrame(items)
    if kind == "pyarrow":
        return pytest.importorskip("pyarrow").Table.from_pylist(items)
    if kind == "datasets":
        return pytest.importorskip("datasets").Dataset.from_list(items)
    return items


@pytest.mark.parametrize("kind", ["dicts", "tasks", "pandas", "pyarrow", "datasets"])
def test_rows_at_hand_have_a_digest(kind: str) -> None:
    def digest(items: list[dict[str, Any]]) -> str | None:
        factory = _rows(_given(kind, items), "data.train")
        options = factory.__globals__["RowsOptions"]()
        return data_digest(CheckedTasks(factory(options, None), {"default": None}, "data.train"))

    assert digest(ROWS) == digest([dict(row) for row in ROWS]) is not None
    assert len({digest(ROWS), digest(OTHERS), digest(ROWS[:9]), digest(list(reversed(ROWS)))}) == 4


def test_a_digest_does_not_depend_on_the_process() -> None:
    """Objects whose text holds an address, and keys of several types."""
    row = {"x": object(), 1: {2, 3}, "bytes": b"\0", "none": None}
    assert data_digest([row]) == data_digest([{**row, "x": object()}])
    assert data_digest([row]) != data_digest([{**row, "bytes": b"\1"}])


def test_large_files_are_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_state, "_BLOCK", 100)
    path = tmp_path / "large"
    path.write_bytes(bytes(100_000))
    watched = WatchedFile(path, 1000)

    def digest_with(place: int) -> str:
        path.write_bytes(bytes(place) + b"x" + bytes(99_999 - place))
        return WatchedFile(path, 1000).digest

    assert watched.digest not in [digest_with(0), digest_with(99_999), digest_with(55_550)]
    # Between the blocks only the times tell of a change, and during a run they count.
    assert digest_with(3000) == watched.digest
    with pytest.raises(DataError, match="changed during the run"):
        watched.check()
