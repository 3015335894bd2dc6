"""LoRA: the adapter that is trained, merged into vLLM's weights, gives the trainer's log-probabilities after
each update."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm_help import OPTIONS, apart, ask, logprobs_of, needs_vllm
from vllm_lora import MergedWeights, add_adapter, train

from toolrl.protocols import BuildContext
from toolrl.types import Sampling
from toolrl_plugin_vllm.engine import VllmEngine
from toolrl_plugin_vllm.options import VllmEngineOptions

pytest.importorskip("peft")
pytestmark = [pytest.mark.timeout(600)]

PROMPT = tuple(range(40, 100))
TOLERANCE = 1e-4


@asynccontextmanager
async def sampling(module: Any, tokenizer: Any, folder: Path, **options: Any) -> AsyncIterator[VllmEngine]:
    weights = MergedWeights(module, tokenizer, folder / "0")
    (folder / "run").mkdir(exist_ok=True)
    context = BuildContext("vllm", tokenizer=tokenizer, weights=weights, dtype=module.dtype, run_dir=folder / "run")
    running = VllmEngine(VllmEngineOptions(**{**OPTIONS, **options}), context)
    await running.start()
    try:
        yield running
    finally:
        await running.stop()
    assert not list((folder / "run").iterdir()), "folders are left behind"


@needs_vllm
@pytest.mark.parametrize("separate_process", [False, True])
async def test_an_adapter_follows_the_trainers(tokenizer: Any, tmp_path: Path, separate_process: bool) -> None:
    module = add_adapter("qwen3", tied=True)
    async with sampling(module, tokenizer, tmp_path, separate_process=separate_process) as running:
        for version in range(3):
            if version:
                before = logprobs_of(module, PROMPT, PROMPT)
                train(module, version)
                assert max(abs(a - b) for a, b in zip(before, logprobs_of(module, PROMPT, PROMPT), strict=True)) > 0.1
                weights = MergedWeights(module, tokenizer, tmp_path / str(version), version)
                await running.update_weights(weights, version)
            assert running.verified < TOLERANCE
            settings = [Sampling(16, temperature=t, seed=version) for t in (1.0, 0.7)]
            done = await ask(running, PROMPT, settings)
            for one, generation in zip(settings, done, strict=True):
                assert apart(module, PROMPT, generation, one.temperature) < TOLERANCE
                assert set(generation.versions) == {version}
