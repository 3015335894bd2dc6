"""The Sandbox Fusion plugin keeps the contracts of a plugin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from toolrl.types import Episode
from toolrl_testing import PluginContract, make_episode, make_task
from toolrl_testing.http_stub import HttpStub

CASES = {"inputs": ["1", "2"], "outputs": ["ok", "no"]}


class TestContract(PluginContract):
    plugin = "sandbox-fusion"
    tool_calls: ClassVar[Mapping[str, Sequence[Mapping[str, Any]]]] = {
        "code_interpreter": [{"code": "print('ok')"}, {"code": "1 + 1", "language": "python"}]
    }
    answer: ClassVar[Any] = CASES

    @pytest.fixture(autouse=True)
    def _sandbox(self, stub: HttpStub) -> None:
        """What the tool and the reward talk to."""
        self.stub = stub

    def component_options(self, kind: str, name: str, tmp_path: Path) -> Mapping[str, Any]:
        return {"sandbox_fusion_url": self.stub.url}

    def episodes(self) -> Sequence[Episode]:
        program = "```python\nprint('ok')\n```"
        task = make_task(answer=CASES)
        return [*super().episodes(), make_episode(program, task=task), make_episode("x", program, task=task)]
