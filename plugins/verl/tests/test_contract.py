"""The verl plugin keeps the contracts of a plugin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from toolrl_testing import PluginContract

ROW = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "user", "content": "What is 2 + 2?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"index": 0, "split": "train"},
}
TOOLS = """
tools:
  - class_name: verl.tools.gsm8k_tool.Gsm8kTool
    config: {type: native}
  - class_name: verl.tools.geo3k_tool.Geo3kTool
    config: {}
"""
FUNCTIONS = '''
from toolrl_plugin_verl.tools.function_tool import function_tool

@function_tool
def double(number: float) -> str:
    """Doubles.

    Args:
        number: What is doubled.
    """
    return str(2 * number)
'''


class TestContract(PluginContract):
    plugin = "verl"
    tool_calls: ClassVar[Mapping[str, Sequence[Mapping[str, Any]]]] = {
        "calc_gsm8k_reward": [{"answer": "4"}, {"answer": "#### 5"}],
        "calc_geo3k_reward": [{"answer": "4"}],
        "double": [{"number": 2}],
    }
    tools_kwargs: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        name: {"create_kwargs": {"ground_truth": "4"}} for name in ("calc_gsm8k_reward", "calc_geo3k_reward")
    }

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        if kind == "datasets":
            rows = tmp_path / "train.jsonl"
            rows.write_text("".join(json.dumps({**ROW, "id": number}) + "\n" for number in range(3)))
            return {"path": str(rows)}
        if kind == "tools":
            (tmp_path / "tools.yaml").write_text(TOOLS)
            (tmp_path / "functions.py").write_text(FUNCTIONS)
            return {
                "tool_config_path": str(tmp_path / "tools.yaml"),
                "function_tool_path": str(tmp_path / "functions.py"),
            }
        return {"scorers": {"*": "math"}} if kind == "rewards" else {}
