"""Options that are found wrong before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from toolrl.config.load import check_config
from toolrl.config.remarks import missing_files
from toolrl.plugins.registry import load_registry
from toolrl.protocols import BuildContext
from toolrl_plugin_vllm import build
from toolrl_plugin_vllm.engine import VllmEngine
from toolrl_plugin_vllm.options import VllmEngineOptions
from toolrl_testing.fakes import FakeWeights


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


def test_who_receives_weights_in_a_rollout_worker() -> None:
    options: list[dict[str, Any]] = [{}, {"separate_process": True}, {"tensor_parallel": 4}]
    assert [VllmEngineOptions(**each).weight_receivers for each in options] == [1, 1, 4]
