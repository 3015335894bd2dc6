"""Dense search: every passage is a vector, and the best are those with the greatest inner product with the query's.

The search is exact, by numpy, block by block: memory is needed for one block, and the vectors stay on disk. Models of
the E5 family are trained with "query: " and "passage: " before the texts; so that is the default for all.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from toolrl.errors import ConfigError, DataError, PluginError
from toolrl_plugin_search.folder import new_folder, read_manifest, write_manifest
from toolrl_plugin_search.passages import Hit, Index, Passage, passage_writer

EXTRA = "pip install 'toolrl-plugin-search[dense]'"
QUERY_PREFIX, PASSAGE_PREFIX = "query: ", "passage: "
MAX_TOKENS = 256
VECTORS = "vectors.f32"
AT_ONCE = 512
"""Passages that are encoded together."""
BLOCK_ROWS = 65536
Array = np.ndarray[Any, Any]


class Encoder:
    """Texts to vectors. One thread at a time."""

    def __init__(self, folder: str, *, device: str = "cpu", max_tokens: int = MAX_TOKENS, batch_size: int = 32) -> None:
        """`folder` holds a transformers model with its tokenizer; no code of it is run, and nothing is downloaded.
        Raises PluginError where transformers is missing, ConfigError where the model can't be loaded."""
        try:
            import torch
            import transformers
        except ModuleNotFoundError as error:
            raise PluginError(f"dense search needs {error.name}", hint=EXTRA) from error
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = transformers.AutoModel.from_pretrained(folder, local_files_only=True)
            self._model = model.to(device).eval()
        except Exception as error:  # a torn file is an error of tokenizers' or of safetensors' own
            raise ConfigError(
                f"the encoder {folder!r} can't be loaded: {error}", hint="Give the folder of a transformers model."
            ) from error
        self._torch = torch
        self._device = device
        self._max_tokens = min(max_tokens, _positions(model.config))
        self._batch_size = batch_size

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return int(self._model.config.hidden_size)

    def encode(self, texts: Sequence[str]) -> Array:
        """Vectors [texts, size] of length 1, float32. Texts are sorted by length for it, so that little is padding."""
        found: Array = np.empty((len(texts), self.size), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for start in range(0, len(order), self._batch_size):
            places = order[start : start + self._batch_size]
            found[places] = self._batch([texts[place] for place in places])
        return found

    def _batch(self, texts: list[str]) -> Array:
        torch = self._torch
        inputs = self._tokenizer(
            texts, max_length=self._max_tokens, padding=True, truncation=True, return_tensors="pt"
        ).to(self._device)
        if inputs["input_ids"].shape[1] == 0:  # Texts without a token are like nothing.
            return np.zeros((len(texts), self.size), dtype=np.float32)
        with torch.inference_mode():
            hidden_BTH = self._model(**inputs).last_hidden_state.float()
            mask_BT1 = inputs["attention_mask"].unsqueeze(-1).float()
            pooled_BH = (hidden_BTH * mask_BT1).sum(1) / mask_BT1.sum(1).clamp(min=1)
            vectors: Array = torch.nn.functional.normalize(pooled_BH, dim=-1).cpu().numpy()
        return vectors


def _positions(config: Any) -> int:
    """How many tokens a model takes; without a bound where its config names none."""
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return sys.maxsize
    # Models of the Roberta family count positions from behind the padding's number on.
    padding = getattr(config, "pad_token_id", None)
    behind = padding + 1 if "roberta" in str(config.model_type) and isinstance(padding, int) else 0
    return max(positions - behind, 1)


def build_dense(
    corpus: Iterable[Passage],
    path: Path,
    encoder: Encoder,
    *,
    encoder_name: str,
    query_prefix: str = QUERY_PREFIX,
    passage_prefix: str = PASSAGE_PREFIX,
    vectors: FaissVectors | None = None,
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Index a corpus into the folder `path`; the number of passages. `vectors` are the passages' own where these were
    made before; then the encoder is for queries only. Raises DataError for a corpus without passages and for vectors
    that don't fit, ConfigError where the folder exists."""
    if vectors is not None and vectors.size != encoder.size:
        raise DataError(f"the vectors have {vectors.size} numbers, the encoder gives {encoder.size}")
    with new_folder(path, overwrite=overwrite) as folder:
        source, count = iter(corpus), 0
        with passage_writer(folder) as add, (folder / VECTORS).open("wb") as file:
            while chunk := list(islice(source, AT_ONCE)):
                for passage in chunk:
                    add(passage)
                encoded = (
                    vectors.take(len(chunk))
                    if vectors is not None
                    else encoder.encode([passage_prefix + passage.contents for passage in chunk])
                )
                file.write(np.ascontiguousarray(encoded, dtype=np.float32).tobytes())
                count += len(chunk)
                if progress is not None:
                    progress(count)
        if count == 0:
            raise DataError("the corpus has no passages")
        if vectors is not None and vectors.left:
            raise DataError(f"there are {vectors.left} vectors more than the corpus has passages ({count})")
        facts = {"passages": count, "size": encoder.size, "encoder": encoder_name, "query_prefix": query_prefix}
        write_manifest(folder, "dense", {**facts, "passage_prefix": passage_prefix})
    return count


class FaissVectors:
    """The vectors of a FAISS index, in order: Search-R1 publishes such indexes of its corpora."""

    def __init__(self, path: Path) -> None:
        """Raises PluginError where FAISS is missing, DataError for a file that is none."""
        try:
            import faiss  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError as error:
            hint = "pip install 'toolrl-plugin-search[faiss]'"
            raise PluginError("reading a FAISS index needs FAISS", hint=hint) from error
        try:
            self._index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP | faiss.IO_FLAG_READ_ONLY)
        except RuntimeError as error:
            raise DataError(f"can't be read by FAISS: {str(error)[-200:]}", where=str(path)) from None
        self._path = path
        self._next = 0

    @property
    def size(self) -> int:
        """Numbers of a vector."""
        return int(self._index.d)

    @property
    def left(self) -> int:
        """Vectors that weren't taken yet."""
        return int(self._index.ntotal) - self._next

    def take(self, count: int) -> Array:
        """The next vectors [count, size]. Raises DataError where there aren't so many, or they can't be had again."""
        if count > self.left:
            raise DataError(
                f"has {self._index.ntotal} vectors, and the corpus has more passages", where=str(self._path)
            )
        try:
            found: Array = self._index.reconstruct_n(self._next, count)
        except RuntimeError as error:
            raise DataError(
                f"its vectors can't be had again: {str(error)[-200:]}",
                where=str(self._path),
                hint="Take a flat index, or leave out --vectors.",
            ) from None
        self._next += count
        return found


class DenseIndex(Index):
    """A dense index on disk. The encoder works for one thread at a time."""

    kind = "dense"

    def __init__(
        self, folder: Path, *, encoder: str | None = None, device: str = "cpu", encodes: Encoder | None = None
    ) -> None:
        """`encoder` is the folder of the model, by default what the index names; `encodes` takes its place. Raises
        DataError, PluginError, ConfigError."""
        facts = read_manifest(folder)
        super().__init__(folder)
        size, self._prefix = facts["size"], facts["query_prefix"]
        name = encoder if encoder is not None else facts["encoder"]
        shape = (facts["passages"], size)
        self._vectors: Array = np.memmap(folder / VECTORS, dtype=np.float32, mode="r", shape=shape)
        self._encoder = encodes if encodes is not None else Encoder(name, device=device)
        if self._encoder.size != size:
            raise DataError(
                f"{folder} holds vectors of {size} numbers, the encoder {name!r} gives {self._encoder.size}",
                hint="Give the encoder that the index was made with.",
            )
        self._lock = threading.Lock()

    def search(self, queries: Sequence[str], topk: int) -> list[list[Hit]]:
        """The best passages of each query, the best first, at most `topk`."""
        if not queries or topk < 1:
            return [[] for _ in queries]
        with self._lock:
            vectors = self._encoder.encode([self._prefix + query for query in queries])
        scores, numbers = nearest(vectors, self._vectors, min(topk, len(self)))
        return [
            [Hit(self.passages[int(number)], float(score)) for score, number in zip(row, ids, strict=True)]
            for row, ids in zip(scores, numbers, strict=True)
        ]


def nearest(queries_QH: Array, vectors_NH: Array, k: int, block_rows: int = BLOCK_ROWS) -> tuple[Array, Array]:
    """Scores [Q, k] and numbers [Q, k] of the vectors with the greatest inner products, the greatest first."""
    best: Array = np.empty((len(queries_QH), 0), dtype=np.float32)
    numbers: Array = np.empty(best.shape, dtype=np.int64)
    for start in range(0, len(vectors_NH), block_rows):
        scores = queries_QH @ np.asarray(vectors_NH[start : start + block_rows]).T
        scores[np.isnan(scores)] = -np.inf
        # Of most blocks few vectors are nearer to any query than the best so far.
        least = best.min(axis=1, keepdims=True) if best.shape[1] == k else -np.inf
        near = np.flatnonzero((scores >= least).any(axis=0))
        best = np.concatenate([best, scores[:, near]], axis=1)
        numbers = np.concatenate([numbers, np.broadcast_to(near + start, (len(best), len(near)))], axis=1)
        if best.shape[1] > k:
            kept = np.argpartition(-best, k - 1, axis=1)[:, :k]
            best, numbers = np.take_along_axis(best, kept, axis=1), np.take_along_axis(numbers, kept, axis=1)
    order = np.lexsort((numbers, -best), axis=1)
    return np.take_along_axis(best, order, axis=1), np.take_along_axis(numbers, order, axis=1)
