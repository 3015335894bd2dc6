"""The parser and the chat formats keep the contracts of a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from toolrl.protocols import BuildContext
from toolrl_testing import PluginContract

TURN = "Let me compute.\n```python\nprint(6 * 7)\n```\n```output\n42\n```\nand <calculator>1 + 1</calculator>"


class TestContract(PluginContract):
    plugin = "tir"
    parser_texts: ClassVar = {"tir": [TURN, f"<think>\nhm\n</think>\n<python>\n{TURN}\n</python>"]}
    formats_take_tools = False  # the contract's tool has no form in this syntax

    @pytest.fixture(autouse=True)
    def _tokenizer(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def build_context(self, kind: str, name: str, tmp_path: Path) -> BuildContext | None:
        if kind != "chat_formats":
            return super().build_context(kind, name, tmp_path)
        return BuildContext(name, where=f"tests.{name}", tokenizer=self.tokenizer)
