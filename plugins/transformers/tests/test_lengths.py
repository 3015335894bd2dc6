"""Models whose arithmetic changes with the length of a sequence: sampled exactly at every length, or refused beyond."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import EngineError
from toolrl.types import Sampling
from toolrl_plugin_torch.config_changes import ConfigChanges
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.modes import train_without_noise
from toolrl_plugin_transformers import check
from toolrl_plugin_transformers.check import verify
from toolrl_plugin_transformers.model import ModelRunner

LIMIT = 64
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": LIMIT,
    "short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 4.0, 8.0],
}  # fmt: skip
TIGHT = 1e-4


def phi(sizes: dict[str, Any], kind: str = "Phi3Config", **fields: Any) -> Any:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2} if kind == "PhimoeConfig" else {}
    scales = {"short_mscale": 1.1, "long_mscale": 1.4} if kind == "PhimoeConfig" else {}
    own = {} if kind == "PhimoeConfig" else {"original_max_position_embeddings": LIMIT}
    return getattr(transformers, kind)(**sizes, **experts, **own, rope_parameters={**LONGROPE, **scales}, **fields)


@pytest.mark.parametrize("kind", ["Phi3Config", "PhimoeConfig"])
def test_sequences_cross_the_limit_of_longrope(
    build: Any, sizes: Any, engine: Any, plain_logprobs: Any, kind: str
) -> None:
    """Turns of an episode, short ones beside it, and what is cached: all as the trainer scores the whole sequences."""
    config = phi(sizes, kind)
    ConfigChanges.make(config, 200)
    module = build(config)
    train_without_noise(module)

    async def play(running: Any, name: str, begin: int) -> list[int]:
        row = list(range(3, 3 + begin))
        for turn in range(4):
            got = await running.generate(row, Sampling(9, seed=turn), session=name)
            assert got.logprobs == pytest.approx(plain_logprobs(module, row, got.ids), abs=TIGHT)
            row = [*row, *got.ids, 5, 6, 7]
        return row

    async def work() -> list[list[int]]:
        async with engine(module, prefill_tokens=32) as running:
            return list(await asyncio.gather(*(play(running, str(n), n) for n in (1, 20, 40, LIMIT - 1, 120))))

    rows = asyncio.run(work())
    assert any(len(row) > LIMIT for row in rows)
    assert any(len(row) < LIMIT for row in rows)
    score = TokenScorer(module)
    width = max(map(len, rows))
    ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in rows])
    loss = mask.bool()
    loss[:, 0] = False
    with torch.no_grad():
        together = score(ids, mask, loss).logprobs_BT
    for found, row in zip(together, rows, strict=True):
        assert found[1 : len(row)].tolist() == pytest.approx(plain_logprobs(module, row[:1], row[1:]), abs=TIGHT)


def test_a_module_with_two_sets_of_factors_is_refused_beyond_the_limit(
    build: Any, sizes: Any, engine: Any, plain_logprobs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    module = build(phi(sizes))
    prompt = list(range(3, 43))

    async def work() -> None:
        async with engine(module) as running:
            got = await running.generate(prompt, Sampling(LIMIT - 40, seed=1), session="a")
            assert got.logprobs == pytest.approx(plain_logprobs(module, prompt, got.ids), abs=TIGHT)
            with pytest.raises(EngineError, match=f"exceed the {LIMIT} .*max_episode_tokens"):
                await running.generate(prompt, Sampling(LIMIT - 39, seed=1), session="b")
            with pytest.raises(EngineError, match=f"exceed the {LIMIT}"):
                await running.score(list(range(LIMIT + 1)), 1)

    asyncio.run(work())
    assert f"at most {LIMIT} tokens of a sequence" in caplog.text
    assert "longrope" in caplog.text


@pytest.mark.parametrize("original", [16, 40])
def test_a_limit_below_the_checks_rows_is_found(build: Any, sizes: Any, original: int) -> None:
    config = phi(sizes)
    config.original_max_position_embeddings = original
    config.rope_parameters["original_max_position_embeddings"] = original
    runner = ModelRunner(build(config))
    verify(runner)
    assert runner.max_positions == original


@pytest.mark.parametrize("kind", ["default", "dynamic", "yarn", "llama3"])
def test_other_kinds_serve_the_models_whole_context(build: Any, sizes: Any, kind: str) -> None:
    more: dict[str, dict[str, Any]] = {
        "default": {}, "dynamic": {"factor": 4.0}, "yarn": {"factor": 4.0, "original_max_position_embeddings": LIMIT},
        "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": LIMIT},
    }  # fmt: skip
    rope = {"rope_type": kind, "rope_theta": 10000.0, **more[kind]}
    runner = ModelRunner(build(transformers.LlamaConfig(**sizes, rope_parameters=rope)))
    verify(runner)
    assert runner.max_positions == sizes["max_position_embeddings"]


@pytest.mark.parametrize("kind", ["MistralConfig", "Gemma2Config"])
def test_a_window_wider_than_the_checks_rows_is_tried(
    build: Any, sizes: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The check's rows are shorter than the windows of real models."""
    module = build(getattr(transformers, kind)(**sizes, head_dim=8, sliding_window=200))
    verify(ModelRunner(module))
    assert module.config.sliding_window == 200
    hiding = ModelRunner._mask

    def one_too_many(self: Any, positions_BT: torch.Tensor, length: int) -> Any:
        self._window += 1
        try:
            return hiding(self, positions_BT, length)
        finally:
            self._window -= 1

    monkeypatch.setattr(ModelRunner, "_mask", one_too_many)
    with pytest.raises(EngineError, match="differ"):
        verify(ModelRunner(module))


def test_a_window_that_the_engine_does_not_know_limits_sequences(
    build: Any, generate: Any, plain_logprobs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """GPT-Neo's local layers have a mask of their own; real ones see 256 tokens, more than the check's rows have."""
    config = transformers.GPTNeoConfig(
        vocab_size=300, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]],
        window_size=LIMIT, max_position_embeddings=256, intermediate_size=48, initializer_range=0.3,
    )  # fmt: skip
    module = build(config)
    prompts = [list(range(3, 3 + length)) for length in (LIMIT - 10, 5, 20)]
    found = generate(module, *((prompt, Sampling(10, seed=1)) for prompt in prompts))
    for prompt, got in zip(prompts, found, strict=True):
        assert got.logprobs == pytest.approx(plain_logprobs(module, prompt, got.ids), abs=TIGHT)
    assert "window_size" in caplog.text
    with pytest.raises(EngineError, match=f"exceed the {LIMIT}"):
        generate(module, (prompts[0], Sampling(11, seed=1)))


MOE = ("MixtralConfig", "Qwen2MoeConfig", "Qwen3MoeConfig", "OlmoeConfig", "PhimoeConfig", "GraniteMoeConfig")


@pytest.mark.parametrize("kind", MOE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_checkpoint_that_asks_for_router_logits(
    build: Any, sizes: Any, generate: Any, plain_logprobs: Any, kind: str, dtype: torch.dtype
) -> None:
    experts = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    config = getattr(transformers, kind)(**sizes, **experts, output_router_logits=True)
    module = build(config).to(dtype)
    prompts = [list(range(3, 20)), list(range(5, 9))]
    found = generate(module, *((prompt, Sampling(5, seed=1)) for prompt in prompts))
    for prompt, got in zip(prompts, found, strict=True):
        if dtype == torch.float32:
            assert got.logprobs == pytest.approx(plain_logprobs(module, prompt, got.ids), abs=TIGHT)


def test_modules_that_recompute_alone_are_back_in_train_mode_after_sampling(build: Any, sizes: Any) -> None:
    module = build(transformers.Qwen3Config(**sizes, head_dim=8))
    module.gradient_checkpointing_enable({"use_reentrant": False})
    train_without_noise(module)
    before = [part.training for part in module.modules()]
    assert any(before)
    assert not module.training
    runner = ModelRunner(module)
    check.verify(runner)
    runner.enter()
    assert not any(part.training for part in module.modules())
    runner.leave()
    assert before == [part.training for part in module.modules()]
