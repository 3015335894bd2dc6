"""The geo3k plugin keeps the contracts of a plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolrl.types import Task
from toolrl_testing import PluginContract, make_task


class TestContract(PluginContract):
    plugin = "geo3k"
    tool_calls = {"calc_geo3k_reward": [{"answer": "3"}, {"answer": "\\boxed{4}"}]}  # noqa: RUF012

    def task(self) -> Task:
        return make_task(tools_kwargs={"calc_geo3k_reward": {"create_kwargs": {"ground_truth": "4"}}})

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        if (kind, name) == ("datasets", "geo3k"):
            path = tmp_path / "train.jsonl"
            path.write_text("".join(json.dumps({"problem": f"{n}?", "answer": str(n)}) + "\n" for n in range(9)))
            return {"path": str(path)}
        return {}
