"""The plugin keeps the contracts of a plugin."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

from toolrl_testing import PluginContract


class TestContract(PluginContract):
    plugin = "ray"
