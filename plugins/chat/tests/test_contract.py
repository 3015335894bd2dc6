"""The chat formats keep the contracts of a plugin."""

from __future__ import annotations

from pathlib import Path

from toolrl.protocols import BuildContext
from toolrl_testing import CharTokenizer, PluginContract


class TestContract(PluginContract):
    plugin = "chat"

    def build_context(self, kind: str, name: str, tmp_path: Path) -> BuildContext:
        return BuildContext(name, where=f"tests.{name}", tokenizer=CharTokenizer())
