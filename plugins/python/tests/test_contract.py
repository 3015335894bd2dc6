"""The Python plugin keeps the contracts of a plugin."""

from __future__ import annotations

from toolrl_testing import PluginContract

_CALLS = [{"code": "print(6 * 7)"}, {"code": "x = [n * n for n in range(5)]\nx"}]


class TestContract(PluginContract):
    plugin = "python"
    tool_calls = {"python": _CALLS, "code_interpreter": _CALLS}  # noqa: RUF012
    answer = {"inputs": [""], "outputs": ["4"]}  # noqa: RUF012
    options = {"python": {"timeout": 5, "pool_size": 1}, "code_interpreter": {"persistent": True}}  # noqa: RUF012
