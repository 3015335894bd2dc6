"""Options, and what is said where the library is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from toolrl.errors import ConfigError
from toolrl_plugin_qwen_agent import library
from toolrl_plugin_qwen_agent.options import QwenAgentOptions
from toolrl_plugin_qwen_agent.toolset import build
from toolrl_testing.fakes import make_build_context


@pytest.mark.parametrize(
    "tools",
    [[], [" "], [{}], [{"name": ""}], [{"name": 1}], [{"name": "a", "as": 1}]],
)
def test_entries_that_are_none(tools: list[Any]) -> None:
    with pytest.raises(ValidationError):
        QwenAgentOptions(tools=tools)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match="qwen_agent isn't installed") as raised:
        build(QwenAgentOptions(tools=["storage"]), make_build_context("qwen_agent"))
    assert raised.value.hint == library.INSTALL
    assert library.check() == f"qwen_agent isn't installed, so its tools can't be used: {library.INSTALL}"


def test_files_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "is_installed", lambda: True)
    (tmp_path / "tools.py").touch()
    there, gone = str(tmp_path / "tools.py"), str(tmp_path / "gone.py")
    QwenAgentOptions(tools=["a", f"{there}:X", {"name": "m:X"}], folders=[str(tmp_path)]).check_files()
    for options in (
        {"tools": [f"{gone}:X"]},
        {"tools": [{"name": f"{gone}:X"}]},
        {"tools": ["a"], "imports": [gone]},
        {"tools": ["a"], "folders": [gone]},
    ):
        with pytest.raises(ConfigError, match="there is no"):
            QwenAgentOptions.model_validate(options).check_files()
    monkeypatch.setattr(library, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match="qwen_agent isn't installed"):
        QwenAgentOptions(tools=["a"]).check_files()
