"""Parser, toolset, reward and command keep the contracts of a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from toolrl_testing import PluginContract

GUIDE = Path(__file__).parent / "support" / "rlfactory_guide.py"
CALL = 'Let me see.\n<tool_call>\n{"name": "calculator", "arguments": {"expression": "1+1"}}\n</tool_call>'


class TestContract(PluginContract):
    plugin = "rlfactory"
    tool_calls: ClassVar = {"facts-lookup": [{"city": "Oslo"}, {"city": "Bergen"}]}
    parser_texts: ClassVar = {"rlfactory": [CALL, f"<think>\nhm\n</think>\n{CALL}\n{CALL}"]}

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        return {"tool_manager": f"{GUIDE}:CityManager"} if kind == "tools" else {}
