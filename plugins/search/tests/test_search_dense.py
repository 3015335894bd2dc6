"""Dense search: the encoder, the index, and its nearest vectors."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolrl.errors import DataError
from toolrl_plugin_search import dense
from toolrl_plugin_search.dense import DenseIndex, Encoder, build_dense, nearest
from toolrl_plugin_search.passages import Passage, read_corpus
from toolrl_plugin_search.retrievers import open_index


class Letters:
    """An encoder that counts letters, and notes the texts."""

    size = 26

    def __init__(self) -> None:
        self.texts: list[str] = []

    def encode(self, texts: Sequence[str]) -> Any:
        self.texts.extend(texts)
        counts = np.array([[text.lower().count(chr(97 + n)) for n in range(26)] for text in texts], dtype=np.float32)
        return counts / np.maximum(np.linalg.norm(counts, axis=1, keepdims=True), 1e-9)


def build(folder: Path, texts: Sequence[str]) -> tuple[DenseIndex, Letters]:
    letters = Letters()
    corpus = [Passage(str(number), text) for number, text in enumerate(texts)]
    build_dense(corpus, folder, letters, encoder_name="letters")
    return DenseIndex(folder, encodes=letters), letters


class TestIndex:
    def test_prefixes_and_hits(self, tmp_path: Path) -> None:
        index, letters = build(tmp_path / "index", ["aaab", "zzzy", "abab"])
        assert letters.texts == ["passage: aaab", "passage: zzzy", "passage: abab"]
        hits, others = index.search(["aab", "zy"], 2)
        assert letters.texts[3:] == ["query: aab", "query: zy"]
        assert {hit.passage.contents for hit in hits} == {"aaab", "abab"}
        assert others[0].passage.contents == "zzzy"
        assert hits[0].score >= hits[1].score
        assert [len(found) for found in index.search(["a"], 100)] == [3]
        assert index.search([], 3) == []
        assert len(index) == 3

    def test_an_empty_corpus_and_a_wrong_encoder(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="no passages"):
            build_dense([], tmp_path / "empty", Letters(), encoder_name="letters")
        build(tmp_path / "index", ["a"])
        other = Letters()
        other.size = 25
        with pytest.raises(DataError, match="vectors of 26 numbers"):
            DenseIndex(tmp_path / "index", encodes=other)


class TestNearest:
    @pytest.mark.parametrize(("k", "rows"), [(1, 10), (5, 3), (40, 7), (100, 1000)])
    def test_blocks_dont_matter(self, k: int, rows: int) -> None:
        chance = np.random.default_rng(k)
        queries = chance.normal(size=(6, 8)).astype(np.float32)
        vectors = chance.normal(size=(100, 8)).astype(np.float32)
        scores, numbers = nearest(queries, vectors, k, block_rows=rows)
        order = np.argsort(-(queries @ vectors.T), axis=1)[:, :k]
        assert np.array_equal(numbers, order)
        assert np.allclose(scores, np.take_along_axis(queries @ vectors.T, order, axis=1))


class TestFaissVectors:
    """Vectors that were made before."""

    def made(self, path: Path, vectors: Any) -> Path:
        faiss = pytest.importorskip("faiss", reason="FAISS isn't installed")
        index = faiss.IndexFlatIP(vectors.shape[1])
        index.add(vectors)
        faiss.write_index(index, str(path))
        return path

    def test_they_take_the_place_of_encoding(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dense, "AT_ONCE", 4)
        texts = [chr(97 + n) * 3 for n in range(10)]
        vectors = Letters().encode(texts)
        letters = Letters()
        corpus = [Passage(str(number), text) for number, text in enumerate(texts)]
        file = dense.FaissVectors(self.made(tmp_path / "flat.index", vectors))
        build_dense(corpus, tmp_path / "index", letters, encoder_name="letters", vectors=file)
        assert letters.texts == []
        assert np.array_equal(np.asarray(DenseIndex(tmp_path / "index", encodes=letters)._vectors), vectors)


needs_transformers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "tokenizers")),
    reason="the encoder needs torch and transformers",
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT of random weights with a tokenizer of letters, as E5 models are built."""
    import torch
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("encoder")
    letters = {name: number for number, name in enumerate(["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz: "])}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    torch.manual_seed(0)
    BertModel(
        BertConfig(
            vocab_size=len(letters), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
        )
    ).save_pretrained(folder)
    return folder


@needs_transformers
class TestEncoder:
    def test_mean_pooling_without_padding(self, model_folder: Path) -> None:
        """A text's vector is the mean of its own tokens' states, whatever else is in its batch."""
        import torch
        from transformers import AutoModel, AutoTokenizer

        texts = ["query: a", "query: a much longer text than the first", "query: hello"]
        found = Encoder(str(model_folder), batch_size=2).encode(texts)
        tokenizer, model = AutoTokenizer.from_pretrained(model_folder), AutoModel.from_pretrained(model_folder).eval()
        for text, vector in zip(texts, found, strict=True):
            with torch.no_grad():
                mean = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
            assert np.allclose(vector, (mean / mean.norm()).numpy(), atol=1e-5)
        assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)

    def test_index_by_command_and_search(self, model_folder: Path, corpus_file: Path, tmp_path: Path) -> None:
        from toolrl.cli.main import main

        folder = tmp_path / "dense"
        arguments = ["--out", str(folder), "--kind", "dense", "--encoder", str(model_folder), "--batch-size", "3"]
        assert main(["search", "index", str(corpus_file), *arguments]) == 0
        index = open_index(folder)
        contents = [passage.contents for passage in read_corpus([corpus_file])]
        (hits,) = index.search([contents[2]], 4)
        assert len(hits) == 4
        assert {hit.passage.contents for hit in hits} == set(contents)
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)

    def test_texts_of_any_length(self, model_folder: Path) -> None:
        """Longer than the model's positions, and of no token."""
        encoder = Encoder(str(model_folder), max_tokens=10**6)
        long, none = encoder.encode(["hello " * 5000, ""])
        assert np.isclose(np.linalg.norm(long), 1, atol=1e-5)
        assert np.all(np.isfinite(none))
        assert np.all(np.isfinite(encoder.encode([""])))
