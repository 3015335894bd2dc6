"""Options that are found wrong before anything is started."""

from __future__ import annotations

from typing import Any

from toolrl.protocols import BuildContext
from toolrl_plugin_vllm import build
from toolrl_plugin_vllm.engine import VllmEngine
from toolrl_plugin_vllm.options import VllmEngineOptions
from toolrl_testing.fakes import FakeWeights


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
