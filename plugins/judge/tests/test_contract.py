"""The judge plugin keeps the contracts of a plugin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from judge_stub import judge_server

from toolrl_testing import PluginContract
from toolrl_testing.http_stub import HttpStub


class TestContract(PluginContract):
    plugin = "judge"
    server: HttpStub

    @pytest.fixture(autouse=True)
    def _server(self) -> Iterator[None]:
        with judge_server() as server:
            self.server = server
            yield

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        return {"base_url": self.server.url, "model": "judge"}
