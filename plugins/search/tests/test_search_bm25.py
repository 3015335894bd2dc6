"""The BM25 index finds exactly what scoring every passage by the formula finds."""

from __future__ import annotations

import json
import math
import random
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import DataError
from toolrl_plugin_search.bm25 import Bm25Index
from toolrl_plugin_search.bm25_build import MAX_WORD_CHARACTERS, build_bm25, words
from toolrl_plugin_search.passages import Passage
from toolrl_plugin_search.retrievers import open_index

Found = list[tuple[int, float]]


class BruteForce:
    """The formula of the index's own documentation, passage by passage."""

    def __init__(self, texts: Sequence[str], k1: float = 0.9, b: float = 0.4) -> None:
        self._counts = [Counter(words(text)) for text in texts]
        lengths = [sum(counts.values()) for counts in self._counts]
        mean = max(sum(lengths) / len(texts), 1.0)
        self._norms = [k1 * (1 - b + b * length / mean) for length in lengths]
        self._df = Counter(word for counts in self._counts for word in counts)
        self._total = len(texts)

    def search(self, query: str, topk: int) -> Found:
        scores = []
        for counts, norm in zip(self._counts, self._norms, strict=True):
            score = 0.0
            for word in words(query):
                if counts[word]:
                    df = self._df[word]
                    idf = math.log(1 + (self._total - df + 0.5) / (df + 0.5))
                    score += idf * counts[word] / (counts[word] + norm)
            scores.append(score)
        order = sorted(range(self._total), key=lambda number: (-scores[number], number))
        return [(number, scores[number]) for number in order[:topk] if scores[number] > 0]


def build(texts: Iterable[str], folder: Path, **settings: Any) -> Bm25Index:
    build_bm25((Passage(str(n), text) for n, text in enumerate(texts)), folder, overwrite=True, **settings)
    return Bm25Index(folder)


def assert_same(found: Found, expected: Found) -> None:
    """The same scores in single precision. Passages whose scores are apart stand in the same order."""
    assert np.allclose([score for _, score in found], [score for _, score in expected], rtol=1e-6), (found, expected)
    assert len(found) == len(expected)
    assert len({number for number, _ in found}) == len(found)
    for place, (number, score) in enumerate(expected):
        near = [other for other, value in expected if math.isclose(value, score, rel_tol=1e-5)]
        last = math.isclose(score, expected[-1][1], rel_tol=1e-5)  # of these some may have been cut off
        assert found[place][0] in near or last, (place, number, found, expected)


def zipf_texts(count: int, length: int, vocabulary: int, seed: int) -> list[str]:
    chance = np.random.default_rng(seed)
    shares = np.arange(1, vocabulary + 1) ** -1.1
    drawn = chance.choice(vocabulary, size=(count, length), p=shares / shares.sum())
    return [" ".join(f"w{number}" for number in row) for row in drawn.tolist()]


class TestWords:
    def test_rules(self) -> None:
        assert words("The Cat's 3rd_hat, O'Neil!") == ["the", "cat", "s", "3rd", "hat", "o", "neil"]
        assert words("Ünïcode Straße") == ["ünïcode", "straße"]
        assert words("e\u0301t\u00e9 \uff11\uff12") == ["été", "12"]
        assert words("東京 tower東") == ["東", "京", "tower", "東"]
        assert words(" \n\x00…") == []
        assert words("x" * 100) == ["x" * MAX_WORD_CHARACTERS]

    @given(st.text())
    def test_total(self, text: str) -> None:
        assert all(0 < len(word) <= MAX_WORD_CHARACTERS for word in words(text))


class TestExactness:
    @settings(max_examples=60, deadline=None)
    @given(
        texts=st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=12).map(" ".join), min_size=1, max_size=40),
        queries=st.lists(st.lists(st.sampled_from("abcdefghi"), max_size=9).map(" ".join), min_size=1, max_size=6),
        topk=st.integers(1, 12),
        constants=st.tuples(st.sampled_from([0.0, 0.9, 2.0]), st.sampled_from([0.0, 0.4, 1.0])),
        block_words=st.sampled_from([1, 7, 1000]),
    )
    def test_any_small_corpus(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        texts: list[str],
        queries: list[str],
        topk: int,
        constants: tuple[float, float],
        block_words: int,
    ) -> None:
        k1, b = constants
        index = build(texts, tmp_path_factory.mktemp("bm25") / "index", k1=k1, b=b, block_words=block_words)
        brute = BruteForce(texts, k1, b)
        for query in queries:
            assert_same(index.numbers(query, topk), brute.search(query, topk))

    @pytest.mark.parametrize("topk", [1, 3, 50])
    def test_words_of_all_frequencies(self, tmp_path: Path, topk: int) -> None:
        texts = zipf_texts(3000, 30, 5000, seed=topk)
        index, brute, chance = build(texts, tmp_path / "index", block_words=20_000), BruteForce(texts), random.Random(1)
        for _ in range(25):
            query = " ".join(chance.sample(chance.choice(texts).split(), chance.choice([1, 2, 4, 10])))
            assert_same(index.numbers(query, topk), brute.search(query, topk))

    def test_equal_scores_stand_in_the_corpus_order(self, tmp_path: Path) -> None:
        index = build(["same words here"] * 500 + ["other"] * 5000, tmp_path / "index")
        assert [number for number, _ in index.numbers("words", 7)] == list(range(7))
        scores = {score for _, score in index.numbers("same words", 500)}
        assert len(scores) == 1

    def test_threads(self, tmp_path: Path) -> None:
        texts = zipf_texts(800, 20, 600, seed=4)
        index = build(texts, tmp_path / "index")
        alone = [index.numbers(query, 5) for query in texts[:40]]
        found: dict[int, list[Found]] = {}

        def work(number: int) -> None:
            found[number] = [index.numbers(query, 5) for query in texts[:40]]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(found.values()) == [alone] * 4


class TestBuilding:
    def test_an_empty_corpus_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no passages"):
            build_bm25([], tmp_path / "index")
        assert list(tmp_path.iterdir()) == []

    def test_what_fails_half_way_leaves_the_old_index(self, tmp_path: Path) -> None:
        build(["a"], tmp_path / "index")

        def broken() -> Iterable[Passage]:
            yield Passage("0", "b")
            raise DataError("a bad row")

        with pytest.raises(DataError, match="a bad row"):
            build_bm25(broken(), tmp_path / "index", overwrite=True)
        assert [path.name for path in tmp_path.iterdir()] == ["index"]
        assert len(Bm25Index(tmp_path / "index").numbers("a", 1)) == 1

    def test_folders_that_hold_no_index(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="holds no index"):
            open_index(tmp_path)
        build(["a"], tmp_path / "index")
        manifest = tmp_path / "index" / "index.json"
        facts = json.loads(manifest.read_text())
        for change, message in [
            ({"format": 99}, "no index of the form"),
            ({"kind": "x"}, "unknown kind"),
            ({"words": "others"}, "indexed by the rules 'others'"),
        ]:
            manifest.write_text(json.dumps({**facts, **change}))
            with pytest.raises(DataError, match=message):
                open_index(tmp_path / "index")
