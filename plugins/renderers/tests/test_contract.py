"""The plugin keeps the contracts of its kinds, with the renderer of Qwen3 and a small tokenizer of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from toolrl.protocols import BuildContext, ReadsTokens
from toolrl_testing import PluginContract

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "ünï 🙂"}}\n</tool_call>'
OPEN = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 +'


class TestContract(PluginContract):
    plugin = "renderers"
    # With thinking off earlier answers stay as they were, which the laws of chat formats ask for.
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "renderers": {"renderer": "qwen3", "options": {"enable_thinking": False}}
    }
    parser_texts: ClassVar[Mapping[str, Sequence[str]]] = {
        "renderers": [CALL, f"<think>x</think>So: {CALL}{OPEN}{CALL}"]
    }

    @pytest.fixture(autouse=True)
    def _tokenizer(self, tokenizer_of: Any) -> None:
        self.tokenizer = tokenizer_of("qwen3")

    def build_context(self, kind: str, name: str, tmp_path: Path) -> BuildContext | None:
        return BuildContext(name, run_dir=tmp_path, tokenizer=self.tokenizer)


def test_the_parser_reads_tokens(parser_of: Any) -> None:
    assert isinstance(parser_of("qwen3"), ReadsTokens)
