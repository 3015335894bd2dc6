"""Commands and tool keep the contracts of a plugin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from toolrl_testing import PluginContract

TOOL = '''
def double(number: int) -> str:
    """Twice a number."""
    return str(2 * number)
'''


class TestContract(PluginContract):
    plugin = "start"
    tool_calls: ClassVar = {"double": {"number": 4}}

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        file = tmp_path / "tools.py"
        file.write_text(TOOL, encoding="utf-8")
        return {"target": f"{file}:double"}
