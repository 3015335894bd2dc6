"""Builds a BM25 index.

A word's weight in a passage depends on the passage and the corpus alone, so it is worked out here once:

    idf(word) · tf / (tf + k1 · (1 − b + b · length / mean length)),    idf = ln(1 + (N − df + ½) / (df + ½))

as in Lucene, without its rounding of lengths. Passages are read in blocks of some million words. A block's pairs of
word and passage are sorted and counted, and wait on disk; when all frequencies are known, they are put together by
word. Memory is needed for one block, the vocabulary, and some bytes a passage.

A word's list holds passage numbers and weights, 8 bytes an entry.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toolrl.errors import DataError
from toolrl_plugin_search.folder import new_folder, write_manifest
from toolrl_plugin_search.passages import Passage, passage_writer

K1, B = 0.9, 0.4
"""Those of Pyserini, which Search-R1 uses."""
BLOCK_WORDS = 4_000_000
MOST_PASSAGES = 2**31 - 1
RULES = "words-1"
"""How texts become words. Written into an index: what was indexed by other rules can't be searched by these."""
MAX_WORD_CHARACTERS = 64
"""Of a word, so many count."""

_ASCII = re.compile(r"[a-z0-9]+")
_WORD = re.compile(r"[^\W_]+")
_SINGLE = re.compile(r"([\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f])")
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """What was built."""

    passages: int
    words: int
    """All words of all passages."""
    vocabulary: int


def words(text: str) -> list[str]:
    """The words of a text, in order: in lower case, every run of letters and digits. There are no stop words and no
    stemming. Characters of Chinese, Japanese and Korean, which are written without spaces, are words of their own.
    Texts that aren't ASCII are put into the form NFKC first, so that a letter with its accent apart, or a digit of full
    width, is found all the same."""
    if text.isascii():
        found = _ASCII.findall(text.lower())
    else:
        found = _WORD.findall(_SINGLE.sub(r" \1 ", unicodedata.normalize("NFKC", text)).lower())
    if any(len(word) > MAX_WORD_CHARACTERS for word in found):
        found = [word[:MAX_WORD_CHARACTERS] for word in found]
    return found


def build_bm25(
    corpus: Iterable[Passage],
    path: Path,
    *,
    k1: float = K1,
    b: float = B,
    overwrite: bool = False,
    block_words: int = BLOCK_WORDS,
    progress: Callable[[int], None] | None = None,
) -> BuildResult:
    """Index a corpus into the folder `path`. `progress` gets the number of passages read, now and then. Raises
    DataError for a corpus without passages, ConfigError where the folder exists."""
    with new_folder(path, overwrite=overwrite) as folder:
        blocks = _Blocks(folder, block_words)
        with passage_writer(folder) as add:
            for passage in corpus:
                add(passage)
                if blocks.add(words(passage.contents)) and progress is not None:
                    progress(blocks.passages)
        if blocks.passages == 0:
            raise DataError("the corpus has no passages")
        blocks.flush()
        result = _join(folder, blocks, k1, b)
        facts = {"passages": result.passages, "words": RULES, "k1": k1, "b": b, "vocabulary": result.vocabulary}
        write_manifest(folder, "bm25", facts)
    return result


class _Blocks:
    """The corpus as blocks of sorted (word, passage) pairs, on disk."""

    def __init__(self, folder: Path, block_words: int) -> None:
        self._folder = folder
        self._block_words = block_words
        self.vocabulary: dict[str, int] = defaultdict(itertools.count().__next__)
        """Word to number; a new word gets the next one."""
        self.lengths = array("i")
        """Words of each passage."""
        self.files: list[Path] = []
        self._numbers = array("i")
        self._first = 0

    @property
    def passages(self) -> int:
        return len(self.lengths)

    def add(self, found: list[str]) -> bool:
        """Take a passage's words; True where a block became full."""
        if self.passages == MOST_PASSAGES:
            raise DataError(f"a corpus may have {MOST_PASSAGES} passages", hint="Split it into several indexes.")
        self._numbers.extend(map(self.vocabulary.__getitem__, found))
        self.lengths.append(len(found))
        if len(self._numbers) < self._block_words:
            return False
        self.flush()
        return True

    def flush(self) -> None:
        """Write what there is of a block."""
        count = self.passages - self._first
        lengths = np.asarray(self.lengths[self._first :], dtype=np.int64)
        keys = np.asarray(self._numbers, dtype=np.int64) * max(count, 1)
        keys += np.repeat(np.arange(count), lengths)
        pairs, frequencies = np.unique(keys, return_counts=True)
        file = self._folder / f"block-{len(self.files)}.npz"
        np.savez(
            file,
            word=(pairs // max(count, 1)).astype(np.int32),
            passage=(pairs % max(count, 1) + self._first).astype(np.int32),
            frequency=frequencies.astype(np.int32),
        )
        self.files.append(file)
        self._numbers = array("i")
        self._first = self.passages

    def take(self) -> Iterable[tuple[Array, Array, Array]]:
        """The blocks' words, passages and frequencies, in order of the passages."""
        for file in self.files:
            with np.load(file) as block:
                yield block["word"], block["passage"], block["frequency"]


def _join(folder: Path, blocks: _Blocks, k1: float, b: float) -> BuildResult:
    """Put the blocks together by word, in the alphabetical order of the words."""
    size = len(blocks.vocabulary)
    order = _write_vocabulary(folder, blocks.vocabulary)
    total = blocks.passages
    lengths = np.asarray(blocks.lengths, dtype=np.float64)
    mean = max(float(lengths.mean()), 1.0)
    norms = k1 * (1 - b + b * lengths / mean)
    df: Array = np.zeros(size, dtype=np.int64)
    for word, _, _ in blocks.take():
        df += np.bincount(order[word], minlength=size)
    idf = np.log1p((total - df + 0.5) / (df + 0.5))
    starts = np.concatenate([[0], np.cumsum(df)]).astype(np.int64)
    entries = int(starts[-1])
    listed = _new(folder / "lists.passages.npy", np.int32, entries)
    weights = _new(folder / "lists.weights.npy", np.float32, entries)
    best: Array = np.zeros(size, dtype=np.float32)
    free = starts[:-1].copy()
    for raw, passage, frequency in blocks.take():
        word = order[raw]
        weight = (idf[word] * (frequency / (frequency + norms[passage]))).astype(np.float32)
        np.maximum.at(best, word, weight)
        places = _places(word, free)
        listed[places], weights[places] = passage, weight
    np.save(folder / "words.lists.npy", starts)
    np.save(folder / "words.best.npy", best)
    for file in blocks.files:
        file.unlink()
    return BuildResult(total, int(lengths.sum()), size)


def _places(word: Array, free: Array) -> Array:
    """Where the pairs of a block go: those of one word, which stand together in it, follow each other from the word's
    first free place on. Moves the free places on."""
    first = np.flatnonzero(np.diff(word, prepend=-1))
    counts = np.diff(first, append=len(word))
    begin = free[word[first]]
    free[word[first]] += counts
    places: Array = np.repeat(begin - first, counts) + np.arange(len(word))
    return places


def _new(file: Path, kind: Any, size: int) -> Any:
    """A file of zeros to be filled. An empty one can't be mapped for writing."""
    if size == 0:
        np.save(file, np.zeros(0, dtype=kind))
    return np.lib.format.open_memmap(file, mode="r+" if size == 0 else "w+", dtype=kind, shape=(size,))


def _write_vocabulary(folder: Path, vocabulary: dict[str, int]) -> Array:
    """Write the words in alphabetical order of their bytes; gives old number to new."""
    encoded = sorted((word.encode("utf-8"), number) for word, number in vocabulary.items())
    order: Array = np.empty(len(encoded), dtype=np.int64)
    order[[number for _, number in encoded]] = np.arange(len(encoded))
    starts = np.concatenate([[0], np.cumsum([len(word) for word, _ in encoded])]).astype(np.int64)
    np.save(folder / "words.starts.npy", starts)
    (folder / "words.bin").write_bytes(b"".join(word for word, _ in encoded))
    return order
