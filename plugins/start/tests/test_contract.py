"""The commands keep the contracts of a plugin."""

from __future__ import annotations

from toolrl_testing import PluginContract


class TestContract(PluginContract):
    plugin = "start"
