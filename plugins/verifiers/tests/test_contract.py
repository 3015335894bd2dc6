"""The plugin verifiers keeps the contracts of a plugin."""

from toolrl.types import Task
from toolrl_plugin_verifiers.options import DataOptions
from toolrl_testing import PluginContract, make_build_context


class TestContract(PluginContract):
    plugin = "verifiers"
    options = {"verifiers": {"id": "vf-games"}}  # noqa: RUF012

    def task(self) -> Task:
        from toolrl_plugin_verifiers.dataset import Examples

        return Examples(DataOptions(id="vf-games"), make_build_context())[0]
