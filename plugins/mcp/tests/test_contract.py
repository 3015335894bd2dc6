"""The MCP plugin keeps the contracts of a plugin."""

from __future__ import annotations

import sys
from pathlib import Path

from toolrl_testing import PluginContract

RAW = str(Path(__file__).parent / "servers" / "raw.py")


class TestContract(PluginContract):
    plugin = "mcp"
    options = {  # noqa: RUF012
        "mcp": {"servers": {"raw": {"command": sys.executable, "args": [RAW]}}, "include": ["echo", "slow"]}
    }
    tool_calls = {  # noqa: RUF012
        "raw-echo": [{"text": "one"}, {"text": "two", "n": 2}],
        "raw-slow": {"seconds": 0.01},
    }
