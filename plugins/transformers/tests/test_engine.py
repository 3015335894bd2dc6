"""Life in the engine: stops, seeds, cancellation, eviction, weight updates, failures."""

from __future__ import annotations

import asyncio
import copy
import random
from typing import Any
from unittest.mock import ANY

import pytest
import torch
import transformers

from toolrl.errors import EngineError
from toolrl.types import Sampling
from toolrl_plugin_transformers.batch import Batch
from toolrl_plugin_transformers.engine import TransformersEngine


async def parked(running: TransformersEngine) -> int:
    """Tokens whose keys and values waiting sessions hold."""
    worker = running._started()
    return await worker.call(lambda: worker.batch.store.parked_tokens)


def _says(module: Any, text: bytes) -> Any:
    """A copy of a model that continues any one-token prompt with these bytes, over and over."""
    spoken = copy.deepcopy(module)

    def say(module: Any, args: Any, kwargs: Any, output: Any) -> Any:
        logits = torch.full_like(output.logits, -100.0)
        for row, position in enumerate(kwargs["position_ids"][:, -1].tolist()):
            logits[row, -1, text[position % len(text)]] = 0.0
        output.logits = logits
        return output

    return spoken, lambda: spoken.register_forward_hook(say, with_kwargs=True)


async def test_a_stop_string_ends_a_row_with_the_token_that_completes_it(
    qwen3: Any, engine: Any, byte_tokenizer: Any
) -> None:
    module, speak = _says(qwen3, "a</to</tool>grüße</tool>".encode())

    async with engine(module, tokenizer=byte_tokenizer()) as running:
        speak()
        stops = [("</tool>",), ("ße",), ("r", "g"), ("nowhere",)]
        jobs = (running.generate([0], Sampling(20, stop=s), session=str(s)) for s in stops)
        got = list(await asyncio.gather(*jobs))
    assert [bytes(g.ids).decode() for g in got] == ["a</to</tool>", "a</to</tool>grüße", "a</to</tool>g", ANY]
    assert [g.stopped_by for g in got] == ["</tool>", "ße", "g", None]
    assert [g.finish for g in got] == ["stop", "stop", "stop", "length"]


async def test_a_seeded_sample_is_the_same_whatever_else_runs(qwen3: Any, engine: Any) -> None:
    sampling = Sampling(24, seed=11, temperature=0.9)

    async with engine(qwen3) as running:
        alone = await running.generate([5, 6, 7], sampling, session="alone")
        others = [
            asyncio.create_task(running.generate([i, 1], Sampling(5 + i % 30), session=str(i))) for i in range(40)
        ]
        await asyncio.sleep(0.01)
        among = await running.generate([5, 6, 7], sampling, session="among")
        other_seed = await running.generate([5, 6, 7], Sampling(24, seed=12, temperature=0.9), session="x")
        await asyncio.gather(*others)
    assert among.ids == alone.ids
    assert among.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    assert other_seed.ids != alone.ids


@pytest.mark.parametrize("options", [{}, {"max_batch": 5}, {"cache_tokens": 300}])
async def test_many_episodes_of_many_turns(
    options: dict[str, Any], qwen3: Any, engine: Any, plain_logprobs: Any
) -> None:
    """64 episodes at once, tools of different speed, caches that come and go: every token is right."""

    async def episode(running: Any, index: int) -> list[tuple[list[int], Any]]:
        chance = random.Random(index)
        prompt = [index % 8] * 20 + [chance.randrange(300) for _ in range(index % 3)]
        turns = []
        for _ in range(3):
            sampling = Sampling(chance.randrange(1, 12), seed=chance.randrange(1000), temperature=0.7 + index % 2)
            got = await running.generate(prompt, sampling, session=str(index))
            turns.append((prompt, got, sampling.temperature))
            await asyncio.sleep(chance.random() * 0.01)
            prompt = [*prompt, *got.ids, *(chance.randrange(300) for _ in range(chance.randrange(1, 9)))]
        await running.close(str(index))
        return turns

    async with engine(qwen3, **options) as running:
        episodes = await asyncio.gather(*(episode(running, i) for i in range(64)))
        left = await parked(running)
    assert left == 0
    for turns in episodes:
        for prompt, got, temperature in turns:
            assert got.logprobs == pytest.approx(plain_logprobs(qwen3, prompt, got.ids, temperature), abs=1e-4)
    reused = sum(got.cached for turns in episodes for _, got, _ in turns[1:])
    assert reused > 0


async def test_cancelling_frees_the_place(qwen3: Any, engine: Any) -> None:
    async with engine(qwen3, max_batch=1) as running:
        long = asyncio.create_task(running.generate([1], Sampling(250, seed=1), session="long"))
        waiting = asyncio.create_task(running.generate([2], Sampling(250, seed=1), session="waiting"))
        await asyncio.sleep(0.02)
        long.cancel()
        waiting.cancel()
        short = await running.generate([3], Sampling(2, seed=1), session="short")
        outcomes = await asyncio.gather(long, waiting, return_exceptions=True)
        again = await running.generate([1], Sampling(3, seed=1), session="long")
    assert len(short.ids) == 2
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
    assert len(again.ids) == 3


async def test_closing_a_session_frees_its_cache_and_fails_what_it_runs(qwen3: Any, engine: Any) -> None:
    async with engine(qwen3) as running:
        await running.close("never heard of")
        await running.generate(list(range(30)), Sampling(4), session="a")
        before = await parked(running)
        await running.close("a")
        after = await parked(running)
        job = asyncio.create_task(running.generate([1], Sampling(250), session="b"))
        await asyncio.sleep(0.02)
        await running.close("b")
        with pytest.raises(EngineError, match="closed while"):
            await job
        results = before, after, await parked(running)
    assert results == (33, 0, 0)


async def test_waiting_sessions_give_way_and_come_back(qwen3: Any, engine: Any, plain_logprobs: Any) -> None:
    results = []
    async with engine(qwen3, cache_tokens=200) as running:
        prompts = {str(i): [10 + i] * 50 for i in range(4)}
        for _ in range(2):
            for name, prompt in prompts.items():
                got = await running.generate(prompt, Sampling(4, seed=1), session=name)
                results.append((prompt, got))
                prompts[name] = [*prompt, *got.ids, 1]
                assert await parked(running) <= 200
    assert any(got.cached == 0 for _, got in results[4:])
    for prompt, got in results:
        assert got.logprobs == pytest.approx(plain_logprobs(qwen3, prompt, got.ids), abs=1e-4)


async def test_an_update_in_the_middle_is_seen_token_by_token(
    build: Any, sizes: Any, engine: Any, weights: Any, plain_logprobs: Any
) -> None:
    module = build(transformers.Qwen3Config(**sizes, head_dim=8))
    old = copy.deepcopy(module)

    async with engine(module) as running:
        jobs = [
            asyncio.create_task(running.generate([i, 2, 3], Sampling(200, seed=i), session=str(i))) for i in range(3)
        ]
        await asyncio.sleep(0.05)
        async with running.hold():
            before = running._started().batch.sampled
            await asyncio.sleep(0.05)
            assert running._started().batch.sampled == before  # nothing is sampled while it is held
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.mul_(1.2)
            await running.update_weights(weights(module), 1)
        results = await asyncio.gather(*jobs)
    for index, got in enumerate(results):
        assert set(got.versions) == {0, 1}
        assert list(got.versions) == sorted(got.versions)
        changed = got.versions.index(1)
        prompt = [index, 2, 3]
        assert got.logprobs[:changed] == pytest.approx(plain_logprobs(old, prompt, got.ids)[:changed], abs=1e-4)
        assert got.logprobs[changed:] == pytest.approx(plain_logprobs(module, prompt, got.ids)[changed:], abs=1e-4)


async def test_with_weights_of_its_own_it_samples_while_the_module_is_trained(
    build: Any, sizes: Any, engine: Any, weights: Any, plain_logprobs: Any
) -> None:
    """What is done to the trainer's module shows only after an update, and token by token in what is half done. Tied
    weights stay tied."""
    module = build(transformers.Qwen3Config(**sizes, head_dim=8, tie_word_embeddings=True)).train()
    old = copy.deepcopy(module)

    async with engine(module, overlap=True) as running:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(1.2)
        first = await running.generate([1, 2, 3], Sampling(6, seed=1), session="first")
        half = asyncio.create_task(running.generate([4, 2, 3], Sampling(200, seed=1), session="half"))
        for _ in range(10_000):
            if running._started().batch.sampled >= 30:
                break
            await asyncio.sleep(0.001)
        await running.update_weights(weights(module), 1)
        assert module.training, "nobody but its owner touches it"
        second = await running.generate([1, 2, 3], Sampling(6, seed=1), session="first")
        first, half, second = first, await half, second
    assert first.logprobs == pytest.approx(plain_logprobs(old, [1, 2, 3], first.ids), abs=1e-4)
    assert second.logprobs == pytest.approx(plain_logprobs(module, [1, 2, 3], second.ids), abs=1e-4)
    assert (set(first.versions), set(second.versions)) == ({0}, {1})
    changed = half.versions.index(1)
    assert list(half.versions) == sorted(half.versions)
    assert half.logprobs[:changed] == pytest.approx(plain_logprobs(old, [4, 2, 3], half.ids)[:changed], abs=1e-4)
    assert half.logprobs[changed:] == pytest.approx(plain_logprobs(module, [4, 2, 3], half.ids)[changed:], abs=1e-4)


@pytest.mark.parametrize("factor", [0.0, 1.01])
async def test_a_zeroed_and_a_stale_tensor_of_its_own_weights_are_caught(
    build: Any, sizes: Any, engine: Any, weights: Any, monkeypatch: pytest.MonkeyPatch, factor: float
) -> None:
    module = build(transformers.Qwen3Config(**sizes, head_dim=8)).bfloat16()
    right = Batch.take_over

    def wrong(self: Batch, module: Any) -> None:
        right(self, module)
        self.runner.module.model.layers[1].self_attn.o_proj.weight.mul_(factor)

    async with engine(module, overlap=True) as running:
        await running.update_weights(weights(module), 1)
        monkeypatch.setattr(Batch, "take_over", wrong)
        what = r"version 2 the engine's copy .* 1 of \d+ tensors differ, 'model.layers.1.self_attn.o_proj.weight'"
        with pytest.raises(EngineError, match=what):
            await running.update_weights(weights(module), 2)


def test_the_module_comes_back_in_training_mode(build: Any, sizes: Any, generate: Any, plain_logprobs: Any) -> None:
    module = build(transformers.Qwen3Config(**sizes, head_dim=8, attention_dropout=0.5))
    module.train()
    module.model.layers[0].eval()  # frozen by its owner
    (got,) = generate(module, ([1, 2, 3], Sampling(20, seed=1)))
    assert module.training
    assert module.model.layers[1].self_attn.training
    assert not module.model.layers[0].self_attn.training
    loss = module(torch.tensor([[1, 2, 3]]), labels=torch.tensor([[1, 2, 3]])).loss
    loss.backward()  # what the engine did leaves nothing behind that training can't use
    module.eval()
    assert got.logprobs == pytest.approx(plain_logprobs(module, [1, 2, 3], got.ids), abs=1e-4)


@pytest.mark.parametrize(
    ("prompt", "sampling", "words"),
    [
        ([], Sampling(3), "empty"),
        ([1, 300], Sampling(3), "id 300"),
        ([-1], Sampling(3), "id -1"),
        ([1] * 250, Sampling(10), "256"),
        ([1], Sampling(0), "max_new_tokens"),
        ([1] * 60, Sampling(60), "cache_tokens"),
        ([1], Sampling(3, stop=("x",)), "tokenizer"),
    ],
)
async def test_impossible_requests_are_refused(
    prompt: list[int], sampling: Sampling, words: str, qwen3: Any, engine: Any
) -> None:
    async with engine(qwen3, cache_tokens=100 if words == "cache_tokens" else None) as running:
        with pytest.raises(EngineError, match=words):
            await running.generate(prompt, sampling, session="a")
        assert (await running.generate([1], Sampling(2), session="a")).finish == "length"


async def test_a_failing_model_fails_every_request_and_hangs_none(qwen3: Any, engine: Any) -> None:
    module = copy.deepcopy(qwen3)

    async with engine(module) as running:
        jobs = [asyncio.create_task(running.generate([i], Sampling(250), session=str(i))) for i in range(5)]
        await asyncio.sleep(0.02)

        module.model.norm.weight = torch.nn.Parameter(torch.ones(7))
        outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        with pytest.raises(EngineError, match="failed"):
            await running.generate([1], Sampling(3), session="z")
        results = outcomes
    for outcome in results:
        assert isinstance(outcome, EngineError)
        assert "RuntimeError" in str(outcome)


async def test_logits_that_are_not_finite_fail_one_request_and_poison_no_other(
    qwen3: Any, engine: Any, plain_logprobs: Any
) -> None:
    module = copy.deepcopy(qwen3)

    async with engine(module) as running:
        with torch.no_grad():
            module.model.embed_tokens.weight[299] = float("nan")
            module.lm_head.weight[299] = 0.0
        bad = asyncio.create_task(running.generate([1, 299, 2], Sampling(5, seed=1), session="bad"))
        good = asyncio.create_task(running.generate([1, 2, 3], Sampling(5, seed=1), session="good"))
        with pytest.raises(EngineError, match="not finite"):
            await bad
        results = [await good]
        for index in range(3):
            results.append(await running.generate([1, 2, 3], Sampling(9, seed=1), session=f"later {index}"))
    for got in results:
        assert 299 not in got.ids
        assert got.logprobs == pytest.approx(plain_logprobs(module, [1, 2, 3], got.ids), abs=1e-4)


def test_weights_that_are_not_finite_are_named_at_start(qwen3: Any, generate: Any) -> None:
    module = copy.deepcopy(qwen3)
    with torch.no_grad():
        module.model.norm.weight[:] = float("inf")
    with pytest.raises(EngineError, match="not finite"):
        generate(module)


async def test_given_tokens_are_scored_together(qwen3: Any, engine: Any, plain_logprobs: Any) -> None:
    """Texts of different length in one padded batch, each as one forward pass by itself gives it."""
    texts = [([5, 6, 7, 8, 9], 1), ([3, 4, 5], 2), (list(range(10, 40)), 20)]
    async with engine(qwen3, prefill_tokens=64) as running:
        for temperature in (1.0, 0.7):
            found = await asyncio.gather(*(running.score(ids, start, temperature=temperature) for ids, start in texts))
            for (ids, start), values in zip(texts, found, strict=True):
                expected = plain_logprobs(qwen3, ids[:start], tuple(ids[start:]), temperature)
                assert values == pytest.approx(expected, abs=1e-5)
        for ids, start, words in (([5, 6], 0, "start is 0"), ([5, 10**6], 1, "vocabulary"), ([5] * 999, 1, "exceed")):
            with pytest.raises(EngineError, match=words):
                await running.score(ids, start)
