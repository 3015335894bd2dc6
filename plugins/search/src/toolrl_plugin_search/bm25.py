"""Searches a BM25 index: exactly the best passages, without looking at most others.

The method is MaxScore. A query's words are taken in order of the most that each can weigh. Their weights are added up
passage by passage, until the words that are left can't lift a passage without any of the earlier words among the best
`topk`. These last words, the frequent ones, are looked up for the remaining candidates only, and candidates drop out on
the way. Each passage's weights are added in this order, so a score doesn't depend on the other passages. Equal scores
stand in the order of the corpus.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolrl.errors import DataError
from toolrl_plugin_search.bm25_build import RULES, words
from toolrl_plugin_search.folder import read_manifest
from toolrl_plugin_search.passages import Hit, Index

MAX_QUERY_WORDS = 512
"""Of a query, so many words count."""
_BLOCK = 64
_ROUNDING = 1e-9
"""Of the most that a query can reach: more than sums and bounds lose by rounding."""
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class _Term:
    """A word of a query, and the passages that have it."""

    number: int
    factor: np.float64
    """How often it stands in the query."""
    most: float
    """The most that it adds to a score."""
    passages: Array
    weights: Array

    def of(self, candidates: Array) -> Array:
        """What it adds to the score of each of these passages."""
        places = np.minimum(np.searchsorted(self.passages, candidates), len(self.passages) - 1)
        found: Array = self.factor * np.where(self.passages[places] == candidates, self.weights[places], np.float32(0))
        return found


class Bm25Index(Index):
    """A BM25 index on disk."""

    kind = "bm25"

    def __init__(self, folder: Path) -> None:
        """Raises DataError where the folder holds no such index."""
        facts = read_manifest(folder)
        if facts.get("words") != RULES:
            raise DataError(
                f"{folder} was indexed by the rules {facts.get('words')!r}, this version has {RULES!r}",
                hint="Make the index anew.",
            )
        super().__init__(folder)
        self._words = _Words(folder)
        self._starts = _mapped(folder / "words.lists.npy")
        self._most = _mapped(folder / "words.best.npy")
        self._listed = _mapped(folder / "lists.passages.npy")
        self._weights = _mapped(folder / "lists.weights.npy")

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """The best passages of each query, the best first; at most `topk`, and none that shares no word with it."""
        return [[Hit(self.passages[number], score) for number, score in self.numbers(query, topk)] for query in queries]

    def numbers(self, query: str, topk: int) -> list[tuple[int, float]]:
        """The same as passage numbers with scores, for one query."""
        terms = self._terms(query)
        if not terms or topk < 1:
            return []
        return _best(terms, np.zeros(len(self), dtype=np.float64), topk)

    def _terms(self, query: str) -> list[_Term]:
        counts = Counter(words(query)[:MAX_QUERY_WORDS])
        found = []
        for word, count in counts.items():
            number = self._words.number(word)
            if number is None:
                continue
            its = slice(int(self._starts[number]), int(self._starts[number + 1]))
            most = count * float(self._most[number])
            found.append(_Term(number, np.float64(count), most, self._listed[its], self._weights[its]))
        return sorted(found, key=lambda term: (-term.most, term.number))


def _best(terms: list[_Term], sums: Array, topk: int) -> list[tuple[int, float]]:
    """The best passages. `sums` are zeros."""
    most = [term.most for term in terms]
    rest = [sum(most[place:]) + _ROUNDING * sum(most) for place in range(len(terms) + 1)]
    bar = 0.0
    """So much the last of the best has at least."""
    added = 0
    while added < len(terms) and bar <= rest[added]:
        term = terms[added]
        sums[term.passages] += term.factor * term.weights
        bar = max(bar, _kth(sums[term.passages], topk))
        added += 1
    candidates, scores = _candidates(terms[:added], sums, bar - rest[added])
    for place in range(added, len(terms)):
        scores += terms[place].of(candidates)
        bar = max(bar, _kth(scores, topk))
        kept = scores >= bar - rest[place + 1]
        candidates, scores = candidates[kept], scores[kept]
    best = np.lexsort((candidates, -scores))[:topk]
    return [(int(candidates[place]), float(scores[place])) for place in best]


def _candidates(terms: list[_Term], sums: Array, least: float) -> tuple[Array, Array]:
    """The passages with a sum of at least `least` and above 0, with their sums. Makes all sums zero."""
    parts = []
    for term in terms:
        seen = sums[term.passages]
        kept = seen >= least if least > 0 else seen > 0
        parts.append((term.passages[kept], seen[kept]))
        sums[term.passages] = 0  # So that a later word doesn't give the same passage once more.
    return np.concatenate([passages for passages, _ in parts]), np.concatenate([seen for _, seen in parts])


def _kth(values: Array, k: int) -> float:
    """A number that at least `k` of the values reach, nearly the largest such one; 0 where there are fewer values."""
    if len(values) < k:
        return 0.0
    if len(values) > 4 * _BLOCK * k:
        # The best of some block each: k of them are k different values.
        whole = len(values) // _BLOCK * _BLOCK
        values = values[:whole].reshape(-1, _BLOCK).max(axis=1)
    return float(np.partition(values, len(values) - k)[len(values) - k])


class _Words:
    """The vocabulary, in alphabetical order: bytes and where each word starts, and no object for each word."""

    def __init__(self, folder: Path) -> None:
        self._starts = _mapped(folder / "words.starts.npy")
        self._bytes = (folder / "words.bin").read_bytes()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def number(self, word: str) -> int | None:
        """The number of a word, or None."""
        wanted = word.encode("utf-8")
        place = bisect_left(range(len(self)), wanted, key=self._word)
        return place if place < len(self) and self._word(place) == wanted else None

    def _word(self, number: int) -> bytes:
        return self._bytes[self._starts[number] : self._starts[number + 1]]


def _mapped(file: Path) -> Array:
    """An array on disk, as a plain one: slices of numpy's own class cost more than what is done with them."""
    plain: Array = np.asarray(np.load(file, mmap_mode="r")).view(np.ndarray)
    return plain
