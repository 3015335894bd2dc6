"""The calculator keeps the contracts of a plugin."""

from __future__ import annotations

from toolrl_testing import PluginContract


class TestContract(PluginContract):
    plugin = "calculator"
    tool_calls = {"calculator": [{"expression": "12 * 34"}, {"expression": "sqrt(2) / 3"}]}  # noqa: RUF012
