"""LoRA: the adapter that is trained, merged into vLLM's weights or computed by vLLM, gives the trainer's
log-probabilities after each update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from vllm_help import OPTIONS, apart, ask, logprobs_of, make_family, most_sampled, needs_vllm
from vllm_lora import MergedWeights, add_adapter, train

from toolrl.errors import ConfigError, EngineError
from toolrl.protocols import BuildContext
from toolrl.types import Sampling
from toolrl_plugin_vllm.adapter import AdapterTransfer
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
@pytest.mark.parametrize("lora", ["merged", "adapter"])
async def test_an_adapter_follows_the_trainers(
    tokenizer: Any, tmp_path: Path, lora: str, separate_process: bool
) -> None:
    module = add_adapter("qwen3", tied=True)
    async with sampling(module, tokenizer, tmp_path, lora=lora, separate_process=separate_process) as running:
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


@needs_vllm
@pytest.mark.parametrize(("family", "tied", "rank", "rslora"), [("llama", False, 4, True), ("qwen2", True, 9, False)])
async def test_other_families_ranks_and_scales(
    tokenizer: Any, tmp_path: Path, family: str, tied: bool, rank: int, rslora: bool
) -> None:
    module = add_adapter(family, tied=tied, rank=rank, rslora=rslora)
    async with sampling(module, tokenizer, tmp_path, lora="adapter") as running:
        train(module, 2)
        await running.update_weights(MergedWeights(module, tokenizer, tmp_path / "1", 1), 1)
        done = await running.generate(PROMPT, Sampling(16, seed=1), session="a")
        assert apart(module, PROMPT, done) < TOLERANCE


@needs_vllm
async def test_a_request_under_way_goes_on_with_the_new_adapter(tokenizer: Any, tmp_path: Path) -> None:
    module, older = (add_adapter("qwen3", tied=True) for _ in range(2))
    async with sampling(module, tokenizer, tmp_path, lora="adapter") as running:
        task = asyncio.ensure_future(running.generate(PROMPT, Sampling(150, seed=1), session="a"))
        while not await running._driver.call(lambda: most_sampled(running._driver.engine) > 4):
            pass
        async with running.hold():
            train(module, 5)
            await running.update_weights(MergedWeights(module, tokenizer, tmp_path / "1", 1), 1)
        done = await task
        place = done.versions.index(1)
        assert 0 < place < 150
        old, new = (logprobs_of(model, PROMPT, done.ids) for model in (older, module))
        assert max(abs(a - b) for a, b in zip(done.logprobs[:place], old[:place], strict=True)) < TOLERANCE
        assert max(abs(a - b) for a, b in zip(done.logprobs[place:], new[place:], strict=True)) < TOLERANCE


@needs_vllm
async def test_an_adapter_that_is_not_taken_is_caught(tokenizer: Any, tmp_path: Path) -> None:
    module, other = (add_adapter("qwen3", tied=True) for _ in range(2))

    async with sampling(module, tokenizer, tmp_path, lora="adapter") as running:
        loads = running._loads.load
        running._loads.load = lambda engine, weights: loads(engine, MergedWeights(other, tokenizer, tmp_path, 1))
        train(module, 3)
        with pytest.raises(EngineError, match="after the update to version 1 vLLM doesn't have"):
            await running.update_weights(MergedWeights(module, tokenizer, tmp_path / "1", 1), 1)


@pytest.mark.parametrize(("rank", "taken"), [(1, 1), (2, 8), (16, 16), (17, 32)])
def test_the_next_rank_that_vllm_has_is_taken(tokenizer: Any, tmp_path: Path, rank: int, taken: int) -> None:
    module = add_adapter("qwen3", tied=True, rank=rank)
    assert AdapterTransfer(MergedWeights(module, tokenizer, tmp_path), tmp_path).rank == taken


def test_an_adapter_on_the_output_layer_is_merged_only(tokenizer: Any, tmp_path: Path) -> None:
    import peft

    module = make_family("llama", tied=False)
    peft.get_peft_model(module, peft.LoraConfig(r=4, target_modules=["q_proj", "lm_head"]))
    with pytest.raises(ConfigError, match="on the output layer") as caught:
        AdapterTransfer(MergedWeights(module, tokenizer, tmp_path), tmp_path)
    assert "lora to merged" in (caught.value.hint or "")
