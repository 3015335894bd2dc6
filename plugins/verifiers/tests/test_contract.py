"""The plugin verifiers keeps the contracts of a plugin."""

from toolrl_testing import PluginContract


class TestContract(PluginContract):
    plugin = "verifiers"
    options = {"verifiers": {"id": "vf-games"}}  # noqa: RUF012
