"""A small corpus, its index, and a server that answers as a test says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "support"))

from search_answers import found

from toolrl_plugin_search.bm25_build import build_bm25
from toolrl_plugin_search.passages import read_corpus
from toolrl_testing.http_stub import HttpStub, http_stub

CORPUS = [
    {"id": "7", "contents": '"Faust"\nFaust is a tragic play by Johann Wolfgang von Goethe.'},
    {"id": "8", "contents": '"Hamlet"\nHamlet is a tragedy by William Shakespeare, set in Denmark.'},
    {"id": "9", "contents": '"Oslo"\nOslo is the capital of Norway.'},
    {"id": "10", "contents": '"Denmark"\nDenmark is a country. Its capital is Copenhagen.'},
]


@pytest.fixture
def corpus_file(tmp_path: Path) -> Path:
    """The corpus as JSON Lines."""
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in CORPUS), encoding="utf-8")
    return path


@pytest.fixture
def index_folder(tmp_path: Path, corpus_file: Path) -> Path:
    """Its BM25 index."""
    build_bm25(read_corpus([corpus_file]), tmp_path / "index")
    return tmp_path / "index"


@pytest.fixture
def stub() -> Iterator[HttpStub]:
    """A retrieval server of this test alone."""
    with http_stub(found) as made:
        yield made
