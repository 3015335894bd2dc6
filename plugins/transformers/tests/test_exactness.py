"""What the engine gives equals what a plain forward pass says, for every kind of model that it takes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import EngineError
from toolrl.types import Sampling
from toolrl_plugin_transformers.model import ModelRunner

TIGHT = 1e-4
MIX = [
    Sampling(12, seed=1),
    Sampling(7, temperature=0.5, seed=2),
    Sampling(15, temperature=1.7, top_k=5, seed=3),
    Sampling(9, temperature=0.0),
    Sampling(11, top_p=0.6, seed=4),
    Sampling(1, seed=5),
    Sampling(20, temperature=0.8, top_k=40, top_p=0.9, min_p=0.02, seed=6),
]


def _models(sizes: dict[str, Any]) -> dict[str, Any]:
    t = transformers
    gemma = {**sizes, "head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 9, "pad_token_id": 0}
    gpt2 = {"vocab_size": 300, "n_positions": 256, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.2}
    return {
        "qwen3": t.Qwen3Config(**sizes, head_dim=8),
        "qwen3 tied": t.Qwen3Config(**sizes, head_dim=8, tie_word_embeddings=True),
        "qwen2": t.Qwen2Config(**sizes),
        "qwen2 windows": t.Qwen2Config(**sizes, use_sliding_window=True, sliding_window=6, max_window_layers=1),
        "llama": t.LlamaConfig(**sizes),
        "llama eager": t.LlamaConfig(**sizes, attn_implementation="eager"),
        "mistral window": t.MistralConfig(**sizes, sliding_window=7),
        "smollm3": t.SmolLM3Config(**sizes),
        "phi3": t.Phi3Config(**sizes),
        "gemma2": t.Gemma2Config(**gemma),
        "gemma3": t.Gemma3TextConfig(**gemma),
        "granite": t.GraniteConfig(**sizes, logits_scaling=3.0),
        "olmo2": t.Olmo2Config(**sizes),
        "gpt2": t.GPT2Config(**gpt2),
        "qwen3 moe": t.Qwen3MoeConfig(
            **sizes, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16
        ),
    }


NAMES = list(_models({}))


@pytest.mark.parametrize("name", NAMES)
def test_logprobs_are_the_models_own(name: str, build: Any, sizes: Any, generate: Any, plain_logprobs: Any) -> None:
    module = build(_models(sizes)[name])
    draw = random.Random(name)
    prompts = [[draw.randrange(300) for _ in range(draw.randrange(1, 40))] for _ in MIX]
    found = generate(module, *zip(prompts, MIX, strict=True))
    for prompt, sampling, got in zip(prompts, MIX, found, strict=True):
        assert len(got.ids) == len(got.logprobs) == len(got.versions) == sampling.max_new_tokens
        assert got.finish == "length"
        wanted = plain_logprobs(module, prompt, got.ids, sampling.temperature or 1.0)
        assert got.logprobs == pytest.approx(wanted, abs=TIGHT)


def test_greedy_is_the_models_argmax(qwen3: Any, generate: Any) -> None:
    prompt = list(range(3, 20))
    (got,) = generate(qwen3, (prompt, Sampling(10, temperature=0.0)))
    with torch.no_grad():
        logits = qwen3(torch.tensor([[*prompt, *got.ids]])).logits[0]
    assert list(got.ids) == logits[len(prompt) - 1 : -1].argmax(-1).tolist()


async def test_turns_of_a_session_reuse_its_cache(qwen3: Any, engine: Any, plain_logprobs: Any) -> None:
    turns = []
    async with engine(qwen3) as running:
        prompt = list(range(20))
        for turn in range(4):
            got = await running.generate(prompt, Sampling(6, seed=turn), session="a")
            turns.append((prompt, got))
            prompt = [*prompt, *got.ids, 7, 8, 9 + turn]
    assert [got.cached for _, got in turns] == [0, 25, 34, 43]  # all but the last sampled token
    for prompt, got in turns:
        assert got.logprobs == pytest.approx(plain_logprobs(qwen3, prompt, got.ids), abs=TIGHT)


async def test_a_prompt_that_departs_from_the_session_uses_the_common_beginning(
    qwen3: Any, engine: Any, plain_logprobs: Any
) -> None:
    first, other = list(range(40)), [*range(25), 99, 98, 97]

    async with engine(qwen3) as running:
        results = [await running.generate(prompt, Sampling(5, seed=1), session="a") for prompt in (first, other, first)]
    assert [got.cached for got in results] == [0, 25, 25]
    for prompt, got in zip((first, other, first), results, strict=True):
        assert got.logprobs == pytest.approx(plain_logprobs(qwen3, prompt, got.ids), abs=TIGHT)


async def test_equal_prompts_are_computed_once(qwen3: Any, engine: Any, plain_logprobs: Any) -> None:
    beginning = [i % 250 for i in range(100)]
    prompts = [[*beginning, 1, 2, 3 + group] for group in range(3) for _ in range(4)]

    async with engine(qwen3) as running:
        # Held until all are there, so that they are looked at together.
        async with running.hold():
            jobs = [
                asyncio.ensure_future(running.generate(p, Sampling(8, seed=i), session=str(i)))
                for i, p in enumerate(prompts)
            ]
            await asyncio.sleep(0.05)
        results = list(await asyncio.gather(*jobs))
        late = await running.generate(prompts[0], Sampling(8, seed=99), session="late")
        computed = running._started().batch.prefilled
    assert computed <= 3 * len(prompts[0]) + 1
    assert late.cached == len(prompts[0]) - 1
    for prompt, got in zip(prompts, results, strict=True):
        assert got.logprobs == pytest.approx(plain_logprobs(qwen3, prompt, got.ids), abs=TIGHT)
    assert len({got.ids for got in results}) == len(results)


async def test_rows_with_a_common_beginning_read_it_once(
    qwen3: Any, engine: Any, plain_logprobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while a row without it is among them."""
    beginning = [i % 250 for i in range(80)]
    prompts = [[*beginning, 1 + i, *range(i)] for i in range(5)]
    read: list[int] = []
    decode = ModelRunner.decode

    def noted(
        self: Any, slots: Any, ids: Any, positions: Any, length: int, shifts: Any, shared: int, *rest: Any
    ) -> Any:
        read.append(shared)
        return decode(self, slots, ids, positions, length, shifts, shared, *rest)

    async def together(running: Any, name: str, asked: list[list[int]]) -> list[Any]:
        async with running.hold():
            jobs = [
                asyncio.ensure_future(running.generate(p, Sampling(12, seed=i), session=f"{name} {i}"))
                for i, p in enumerate(asked)
            ]
            await asyncio.sleep(0.05)
        return list(await asyncio.gather(*jobs))

    async with engine(qwen3) as running:
        monkeypatch.setattr(ModelRunner, "decode", noted)
        unlike = await together(running, "unlike", [*prompts, [5, 6, 7]])
        assert not any(read)
        results = unlike[:5] + await together(running, "alike", prompts)
    for prompt, got in zip([*prompts, *prompts], results, strict=True):
        assert got.logprobs == pytest.approx(plain_logprobs(qwen3, prompt, got.ids), abs=TIGHT)
    assert 80 in read


def test_long_prompts_are_split(qwen3: Any, generate: Any, plain_logprobs: Any) -> None:
    prompt = [(7 * i) % 300 for i in range(150)]
    requests = [(prompt, Sampling(4, seed=1)), (prompt[::-1], Sampling(4, seed=1)), (prompt[:9], Sampling(40, seed=1))]
    for (asked, _), got in zip(requests, generate(qwen3, *requests, prefill_tokens=32), strict=True):
        assert got.logprobs == pytest.approx(plain_logprobs(qwen3, asked, got.ids), abs=TIGHT)
        assert got.cached == 0


def test_bfloat16_is_close(build: Any, sizes: Any, generate: Any, plain_logprobs: Any) -> None:
    module = build(transformers.Qwen3Config(**sizes, head_dim=8)).to(torch.bfloat16)
    (got,) = generate(module, (list(range(30)), Sampling(20, seed=1)))
    wanted = plain_logprobs(module, list(range(30)), got.ids)
    assert sum(abs(a - b) for a, b in zip(got.logprobs, wanted, strict=True)) / 20 < 0.1


def test_ids_that_the_tokenizer_lacks_are_never_sampled(qwen3: Any, generate: Any, byte_tokenizer: Any) -> None:
    hot = [([1], Sampling(50, temperature=50.0))] * 8
    ids = [token for got in generate(qwen3, *hot, tokenizer=byte_tokenizer()) for token in got.ids]
    assert max(ids) < 256
    assert len(set(ids)) > 100


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda sizes: transformers.BloomConfig(vocab_size=300, hidden_size=32, n_layer=1, n_head=2), "position_ids"),
        (
            lambda sizes: transformers.Qwen3NextConfig(
                **sizes,
                head_dim=8,
                layer_types=["linear_attention", "full_attention"],
                num_experts=2,
                num_experts_per_tok=1,
            ),
            "linear_attention",
        ),
    ],
)
def test_models_that_it_cannot_serve_are_refused(make: Any, words: str, build: Any, sizes: Any, generate: Any) -> None:
    with pytest.raises(EngineError, match=words) as caught:
        generate(build(make(sizes)))
    assert "vllm" in str(caught.value)


def test_the_check_at_start_finds_a_wrong_model(sizes: Any, generate: Any) -> None:
    class Biased(transformers.Qwen3ForCausalLM):
        """Ignores the positions that it is given as soon as there is a cache."""

        def forward(self, position_ids: Any = None, logits_to_keep: Any = 0, **kwargs: Any) -> Any:
            if kwargs.get("past_key_values") is not None:
                position_ids = torch.zeros_like(position_ids)
            return super().forward(position_ids=position_ids, logits_to_keep=logits_to_keep, **kwargs)

    torch.manual_seed(0)
    with pytest.raises(EngineError, match="differ by"):
        generate(Biased(transformers.Qwen3Config(**sizes, head_dim=8)))
