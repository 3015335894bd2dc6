"""The search plugin keeps the contracts of a plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from toolrl.types import Episode
from toolrl_testing import PluginContract, make_episode, make_task


class TestContract(PluginContract):
    plugin = "search"
    tool_calls: ClassVar[Mapping[str, Sequence[Mapping[str, Any]]]] = {
        "search": [{"query": "who wrote faust?"}, {"query": "capital", "topk": 2}],
        "query_rag": [{"query": "who wrote faust?"}, {"query": "capital", "topk": 2}],
    }
    answer: ClassVar[Any] = ["Goethe", "Johann Wolfgang von Goethe"]

    @pytest.fixture(autouse=True)
    def _index(self, index_folder: Path) -> None:
        """What the tools search."""
        self.folder = index_folder

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        if kind == "tools":
            return {"index": str(self.folder)}
        if kind == "datasets":
            path = tmp_path / "questions.jsonl"
            rows = [{"question": f"Who wrote book {n}?", "golden_answers": [f"Author {n}"]} for n in range(5)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
            return {"path": str(path)}
        return {}

    def episodes(self) -> Sequence[Episode]:
        task = make_task(answer=self.answer)
        said = "It says so. <answer>Goethe</answer>"
        return [*super().episodes(), make_episode(said, task=task), make_episode("<answer>", said, task=task)]
