"""The data set `huggingface` keeps the contracts of a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolrl_testing import PluginContract


class TestContract(PluginContract):
    plugin = "huggingface"

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        path = tmp_path / "rows.jsonl"
        path.write_text('{"prompt": "1 + 1?", "answer": "2"}\n{"prompt": "2 + 2?", "answer": "4"}\n')
        return {"path": str(path)}
