"""The engine keeps the contracts of a plugin and, where vLLM is installed, of a rollout engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from vllm_help import HAS_VLLM, OPTIONS, PARSER_TEXTS, Weights, make_model, make_tokenizer

from toolrl.component import Component
from toolrl.protocols import BuildContext
from toolrl.types import Decoded
from toolrl_testing import PluginContract, make_build_context
from toolrl_testing.fakes import FakeChatFormat


class ByteFormat(FakeChatFormat):
    """Decodes with the tokenizer that vLLM has, token by token."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def decode(self, ids: Sequence[int]) -> Decoded:
        texts = [self._tokenizer.decode(list(ids[:n])) for n in range(len(ids) + 1)]
        return Decoded(texts[-1], tuple(len(text) for text in texts))


class TestContract(PluginContract):
    plugin = "vllm"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {"vllm": OPTIONS}
    parser_texts: ClassVar[Mapping[str, Sequence[str]]] = PARSER_TEXTS

    def build_context(self, kind: str, name: str, tmp_path: Path) -> BuildContext | None:
        if not HAS_VLLM or name == "openai":
            return None  # test_vllm_server.py has a server, and runs the contracts of an engine against it
        import torch

        tokenizer = make_tokenizer()
        if kind == "parsers":
            return make_build_context(name, tokenizer=tokenizer)
        return make_build_context(
            name,
            run_dir=tmp_path,
            tokenizer=tokenizer,
            chat_format=ByteFormat(tokenizer),
            weights=Weights(make_model(), tokenizer, tmp_path / "weights"),
            dtype=torch.float32,
            deterministic=True,
        )

    # vLLM's parsers are many, and each is for a model of its own.

    def test_parser_finds_calls(self, parser: Component[Any], tmp_path: Path) -> None:
        if parser.name not in self.parser_texts:
            pytest.skip("no example turn here; test_vllm_parser.py tries it on random text")
        super().test_parser_finds_calls(parser, tmp_path)

    def test_parser_is_total(self, parser: Component[Any], tmp_path: Path) -> None:
        if parser.name not in self.parser_texts:
            pytest.skip("no example turn here; test_vllm_parser.py tries it on random text")
        super().test_parser_is_total(parser, tmp_path)

    def test_parser_is_linear(self, parser: Component[Any], tmp_path: Path) -> None:
        pytest.skip("the code is vLLM's; a turn is bounded in its length instead")
