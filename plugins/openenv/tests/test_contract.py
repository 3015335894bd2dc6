"""The OpenEnv plugin keeps the contracts of a plugin."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from openenv_wire_server import TOOLS, FakeServer, in_thread

from toolrl_testing import PluginContract


@functools.cache
def url() -> str:
    """Of a server that runs as long as the tests do."""
    return in_thread(FakeServer(tools=TOOLS)).url


class TestContract(PluginContract):
    plugin = "openenv"
    options = {  # noqa: RUF012
        "gymnasium": {"target": "openenv_games:Counter", "max_sessions": 2}
    }
    tool_calls = {"count": {}, "echo": [{"text": "one"}, {"text": "two"}]}  # noqa: RUF012

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        return {"url": url()} if name == "openenv" else super().component_options(kind, name, tmp_path)
