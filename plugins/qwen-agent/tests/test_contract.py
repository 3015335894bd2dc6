"""The Qwen-Agent plugin keeps the contracts of a plugin."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from toolrl.component import Component
from toolrl.protocols import Toolset
from toolrl_testing import PluginContract


class TestContract(PluginContract):
    plugin = "qwen-agent"
    options = {"qwen_agent": {"tools": ["storage"]}}  # noqa: RUF012
    tool_calls = {  # noqa: RUF012
        "storage": [{"operate": "put", "key": "a/b", "value": "c"}, {"operate": "scan", "key": "/"}]
    }

    def toolset(self, component: Component[Any], tmp_path: Path) -> Toolset:
        if importlib.util.find_spec("qwen_agent") is None:
            pytest.skip("qwen_agent isn't installed")
        return super().toolset(component, tmp_path)
