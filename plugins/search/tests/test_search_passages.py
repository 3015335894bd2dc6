"""Corpus files, and passages found again by number."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolrl.errors import DataError
from toolrl_plugin_search.passages import Passage, PassageStore, passage_writer, read_corpus, sound


def test_rows_of_each_form(tmp_path: Path) -> None:
    rows = [
        {"id": "0", "contents": '"Evan Morris"\nEvan Morris was a lobbyist.'},
        {"_id": 5, "title": "Oslo", "text": "A capital."},
        {"text": "No title."},
        {"id": 7, "contents": "One line", "other": [1]},
    ]
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_text("\n\n".join(json.dumps(row) for row in rows[:2]), encoding="utf-8")
    packed.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows[2:]).encode()))
    found = list(read_corpus([plain, packed]))
    assert [(one.id, one.title, one.text) for one in found] == [
        ("0", "Evan Morris", "Evan Morris was a lobbyist."),
        ("5", "Oslo", "A capital."),
        ("2", "No title.", "No title."),
        ("7", "One line", "One line"),
    ]
    assert found[0].document() == rows[0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "expected an object"),
        ('{"id": 1}', "needs a text `contents`"),
        ('{"contents": " "}', "needs a text `contents`"),
        ('{"contents": 5}', "needs a text `contents`"),
    ],
)
def test_bad_rows_are_told_with_their_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"contents": "good"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=message) as raised:
        list(read_corpus([path]))
    assert raised.value.where == f"{path}:2"


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=st.lists(st.tuples(st.text(), st.text()), max_size=8))
def test_what_is_written_is_read(tmp_path: Path, rows: list[tuple[str, str]]) -> None:
    passages = [Passage(sound(name), sound(contents)) for name, contents in rows]
    with passage_writer(tmp_path) as add:
        for passage in passages:
            add(passage)
    store = PassageStore(tmp_path)
    assert [store[number] for number in range(len(store))] == passages
    with pytest.raises(IndexError):
        store[len(passages)]
    with pytest.raises(IndexError):
        store[-1]
