"""The areal plugin keeps the contracts of a plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from toolrl_testing import PluginContract

TOOL = """
from types import SimpleNamespace


class Echo:
    tool_type = "echo"
    description = SimpleNamespace(description="Says it.", parameters={"text": "What."}, parameter_prompt="A text.")
    markers = SimpleNamespace(start_markers=["<echo>"], end_markers=["</echo>"])

    def __init__(self, timeout):
        pass

    def parse_parameters(self, text):
        return {"text": text[6:-7]}

    def execute(self, parameters):
        return parameters["text"], "success"
"""
TURN = "Let me compute.\n```python\nprint(6 * 7)\n```\n```output\n42\n```\nand <calculator>1 + 1</calculator>"


class TestContract(PluginContract):
    plugin = "areal"
    tool_calls: ClassVar = {"echo": {"text": "x"}}
    parser_texts: ClassVar = {"areal_tir": [TURN, f"{TURN}\n<python>\nprint(1)\n</python>"]}

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        if kind == "tools":
            (tmp_path / "contract_tool.py").write_text(TOOL)
            return {"target": "contract_tool:Echo", "python_path": [str(tmp_path)]}
        if kind != "datasets":
            return {}
        path = tmp_path / "train.jsonl"
        rows = [
            {"messages": [{"role": "user", "content": f"What is {n} + 1?"}], "answer": str(n + 1)} for n in range(9)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return {"path": str(path)}
