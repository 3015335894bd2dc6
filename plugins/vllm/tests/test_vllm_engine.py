"""The engine on real vLLM: exact log-probabilities, weights that follow the trainer's, requests that come and go."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from vllm_help import (
    MODEL_IDS,
    OPTIONS,
    Stale,
    Weights,
    apart,
    change,
    logprobs_of,
    make_model,
    needs_vllm,
)

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext
from toolrl.types import Sampling
from toolrl_plugin_vllm.engine import VllmEngine
from toolrl_plugin_vllm.options import VllmEngineOptions

pytestmark = needs_vllm

PROMPT = tuple(range(40, 100))
TOLERANCE = 1e-4


async def test_a_prompt_that_is_split_gives_the_same_sample(engine: Any) -> None:
    prompts, found = [tuple(range(n, n + 100)) for n in range(6)], []
    for tokens in (2048, 32):
        module = make_model()
        async with engine(module, engine_args={"max_num_batched_tokens": tokens}) as running:
            done = await asyncio.gather(
                *(
                    running.generate(prompt, Sampling(12, temperature=0.9, seed=n), session=str(n))
                    for n, prompt in enumerate(prompts)
                )
            )
            assert all(apart(module, *pair, 0.9) < TOLERANCE for pair in zip(prompts, done, strict=True))
        found.append([one.ids for one in done])
    assert found[0] == found[1]


async def test_ids_that_the_tokenizer_lacks_are_never_sampled(engine: Any, tokenizer: Any) -> None:
    import torch

    module, known = make_model(tied=False), len(tokenizer)
    assert known < MODEL_IDS
    with torch.no_grad():
        module.lm_head.weight[known:] = module.lm_head.weight[:1] * 8  # so large that they would win often
    async with engine(module) as running:
        settings = [Sampling(12, temperature=0.0), *(Sampling(12, temperature=1.0, seed=n) for n in range(8))]
        for number, one in enumerate(settings):
            done = await running.generate(PROMPT, one, session=str(number))
            assert max(done.ids) < known
            assert apart(module, PROMPT, done) < TOLERANCE


async def test_requests_without_seeds_draw_from_the_distribution_and_leave_the_trainers_random_state(
    engine: Any, tokenizer: Any
) -> None:
    import torch

    module, prompts = make_model(), [PROMPT] * 400
    with torch.no_grad():
        wanted = torch.softmax(module(torch.tensor([PROMPT])).logits[0, -1, : len(tokenizer)] / 0.5, dim=-1)
    async with engine(module, deterministic=False, max_batch=64) as running:
        before, samples = torch.get_rng_state(), []
        for _ in range(2):
            sampling = Sampling(1, temperature=0.5, seed=7)
            done = await asyncio.gather(
                *(running.generate(prompt, sampling, session=str(n)) for n, prompt in enumerate(prompts))
            )
            samples.append(torch.tensor([one.ids[0] for one in done]))
            assert max(apart(module, PROMPT, one, 0.5) for one in done[::50]) < TOLERANCE
        assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(*samples)
    found = torch.bincount(torch.cat(samples), minlength=len(tokenizer))
    # 800 draws: the total variation of so many from the distribution itself is about 0.1.
    assert 0.5 * float((found / found.sum() - wanted).abs().sum()) < 0.2


@pytest.mark.parametrize("separate_process", [False, True])
@pytest.mark.parametrize("factor", [0.0, 1.01])
async def test_in_bfloat16_a_zeroed_and_a_stale_tensor_are_caught(
    engine: Any, tokenizer: Any, tmp_path: Path, factor: float, *, separate_process: bool
) -> None:
    import torch

    module = make_model(dtype=torch.bfloat16)
    async with engine(module, separate_process=separate_process) as running:
        change(module)
        await running.update_weights(Weights(module, tokenizer, tmp_path / "w", 1), 1)
        assert 0.0 < running.verified < 0.05
        stale = Stale(make_model(dtype=torch.bfloat16), module, tokenizer, tmp_path / "s", 2)
        stale.other.load_state_dict(module.state_dict())
        with torch.no_grad():
            stale.other.model.layers[1].self_attn.o_proj.weight.mul_(factor)
        wrong = r"version 2 vLLM .*: 1 of \d+ tensors differ, 'model.layers.1.self_attn.o_proj.weight'"
        with pytest.raises(EngineError, match=wrong):
            await running.update_weights(stale, 2)


async def test_turns_of_a_session_reuse_the_cache(engine: Any) -> None:
    module = make_model()
    async with engine(module) as running:
        first = await running.generate(PROMPT, Sampling(40, seed=1), session="a")
        assert first.cached == 0
        longer = (*PROMPT, *first.ids, *PROMPT[:5])
        second = await running.generate(longer, Sampling(8, seed=2), session="a")
        assert second.cached >= 64
        assert apart(module, longer, second) < TOLERANCE


async def test_stop_strings_are_found_as_in_the_decoded_text(engine: Any, tokenizer: Any) -> None:
    async with engine(make_model()) as running:
        chance, found = random.Random(0), 0
        for number in range(12):
            free = await running.generate(PROMPT, Sampling(24, seed=number), session="a")
            texts = [tokenizer.decode(list(free.ids[:n])) for n in range(len(free.ids) + 1)]
            start = chance.randrange(len(texts[-1]))
            stop = texts[-1][start : start + chance.randint(1, 3)]
            if "\ufffd" in stop:
                continue
            found += 1
            end = texts[-1].find(stop) + len(stop)
            wanted = next(n for n, text in enumerate(texts) if len(text) >= end and text[:end] == texts[-1][:end])
            # vLLM must not be led astray by a second stop string that never comes.
            cut = await running.generate(PROMPT, Sampling(24, seed=number, stop=(stop, "never")), session="b")
            assert cut.ids == free.ids[:wanted], (stop, texts[-1])
            assert (cut.finish, cut.stopped_by) == ("stop", stop)
            assert len(cut.logprobs) == len(cut.versions) == len(cut.ids)
        assert found > 3


@pytest.mark.parametrize(
    ("prompt", "sampling", "message"),
    [
        ((), Sampling(4), "the prompt is empty"),
        (PROMPT, Sampling(0), "refuses"),
        (PROMPT, Sampling(250), "are 310, more than the 256"),
        (PROMPT, Sampling(4, temperature=0.001), "samples at 0.01 or more"),
        (PROMPT, Sampling(4, top_p=0.0), "refuses"),
        ((5, 100000), Sampling(4), "refuses"),
    ],
)
async def test_what_cannot_be_served_is_refused_and_the_engine_goes_on(
    shared_engine: Any, prompt: Any, sampling: Sampling, message: str
) -> None:
    with pytest.raises(EngineError, match=message):
        await shared_engine.generate(prompt, sampling, session="a")
    done = await shared_engine.generate(PROMPT, Sampling(3, seed=1), session="a")
    assert len(done.ids) == 3


@pytest.fixture(scope="module")
def shared_engine(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    module = make_model()
    weights = Weights(module, tokenizer, tmp_path_factory.mktemp("weights"))
    running = VllmEngine(
        VllmEngineOptions(**OPTIONS), BuildContext("vllm", tokenizer=tokenizer, weights=weights, dtype=module.dtype)
    )
    asyncio.run(running.start())
    yield running
    asyncio.run(running.stop())


async def test_the_process_stays_as_it_was(engine: Any) -> None:
    import torch

    torch.manual_seed(5)
    module = make_model()
    states = torch.get_rng_state(), torch.set_num_threads, torch.get_default_dtype()
    async with engine(module) as running:
        await running.generate(PROMPT, Sampling(4, seed=1), session="a")
        assert torch.equal(torch.get_rng_state(), states[0])
        assert torch.set_num_threads is states[1]
        assert torch.get_default_dtype() == states[2]


async def test_a_teacher_scores_given_tokens(engine: Any) -> None:
    module = make_model()
    texts = [(list(range(20, 60)), 5), (list(range(250, 259)), 1), (list(range(200, 90, -1)), 100)]
    async with engine(module) as running:
        found = await asyncio.gather(*(running.score(ids, start) for ids, start in texts))
    for (ids, start), values in zip(texts, found, strict=True):
        assert values == pytest.approx(logprobs_of(module, ids[:start], ids[start:]), abs=TOLERANCE)
