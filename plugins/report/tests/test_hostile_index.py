"""An index of episodes from elsewhere: nothing in it fills the memory, and what can't be right is made anew."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable

import pytest

from toolrl.errors import DataError
from toolrl.runs import files
from toolrl.runs.folder import RunFolder
from toolrl_plugin_report import index
from toolrl_plugin_report.serve import ServedRun

MakeRun = Callable[..., RunFolder]


@pytest.mark.parametrize("bomb", ["member", "texts", "index", "starts"])
def test_a_hostile_index_fills_no_memory(bomb: str, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(files, "MOST_LINE", 1 << 20)
    monkeypatch.setattr(files, "MOST_BYTES", 1 << 20)
    monkeypatch.setattr(index, "MOST_TEXT", 1 << 20)
    folder = RunFolder.open(make_run(steps=1).directory)
    served = ServedRun(folder)
    served.refresh()
    (file,) = folder.episode_store.files()[:1]
    head = {"columns": index.COLUMNS, "stamp": index.stamp_of(file.path), "totals": {}, "members": [0]}
    beside = file.path.parent / "index" / f"{index.name_of(file)}.json"
    assert index.read_index(file) is not None
    if bomb == "index":
        beside.write_text(json.dumps(head) + "\n" + "[" + "0," * (1 << 20) + "0]\n")
        assert index.read_index(file) is None
    elif bomb == "starts":
        beside.write_text(json.dumps({**head, "totals": index.Totals().to_json(), "members": ["x"]}) + "\n[]\n")
        assert index.read_index(file) is None
    elif bomb == "texts":
        beside.with_suffix(index.TEXTS).write_bytes(gzip.compress(b"a\n" * (1 << 20)))
        with pytest.raises(DataError, match="longer than"):
            index.read_index(file).lines_with(b"b")  # type: ignore[union-attr]
    else:
        file.path.write_bytes(gzip.compress(b"a" * (2 << 20)))
        with pytest.raises(DataError, match="longer than 1 MiB"):
            index.read_member(file, 0, [0])
