"""The areal plugin keeps the contracts of a plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from toolrl_testing import PluginContract

TOOL = """
from toolrl_plugin_areal.tools import BaseTool, ToolCallStatus, ToolDescription, ToolMarkers


class Echo(BaseTool):
    tool_type = "echo"
    description = ToolDescription("echo", "Says it again.", {"text": "What."}, "Give a text.", "<echo>x</echo>")
    markers = ToolMarkers(["<echo>"], ["</echo>"])

    def parse_parameters(self, text):
        return {"text": text[6:-7]}

    def execute(self, parameters):
        return parameters["text"], ToolCallStatus.SUCCESS
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
