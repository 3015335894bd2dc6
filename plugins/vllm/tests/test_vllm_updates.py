"""Weights that change under episodes: many requests under way over many updates, and turns of one episode before and
after one. Each token's log-probability is that of the version that it says, so nothing of older weights is reused."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
from vllm_help import BYTES, Weights, change, logprobs_of, make_model, needs_vllm

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_testing.checks import engines

pytestmark = [needs_vllm, pytest.mark.timeout(600)]
PROMPT = tuple(range(40, 100))
TOLERANCE = 1e-4


def check(models: dict[int, Any], prompt: tuple[int, ...], done: Generation, temperature: float = 1.0) -> None:
    """Every token has the log-probability of the model of its version."""
    for version in set(done.versions):
        wanted = logprobs_of(models[version], prompt, done.ids, temperature)
        for token, (said, value) in enumerate(zip(done.logprobs, wanted, strict=True)):
            if done.versions[token] == version:
                assert abs(said - value) < TOLERANCE, (version, token)


def sampled(engine: Any) -> int:
    states = engine.output_processor.request_states.values()
    return min((state.detokenizer.num_output_tokens() for state in states), default=0)


@pytest.mark.parametrize("separate_process", [False, True])
async def test_many_requests_over_many_updates(
    engine: Any, tokenizer: Any, tmp_path: Path, separate_process: bool
) -> None:
    module = make_model()
    models = {0: copy.deepcopy(module)}
    async with engine(module, separate_process=separate_process) as running:
        prompts = [PROMPT[: 20 + 2 * n] for n in range(12)]
        settings = [Sampling(120 + 5 * n, temperature=0.6 + 0.1 * n, seed=n) for n in range(12)]
        tasks = [
            asyncio.ensure_future(running.generate(prompt, one, session=str(n)))
            for n, (prompt, one) in enumerate(zip(prompts, settings, strict=True))
        ]
        driver = running._driver
        for version in (1, 2, 3):
            while await driver.call(lambda: sampled(driver.engine)) < 25 * version:
                pass
            async with running.hold():
                change(module, version)
                models[version] = copy.deepcopy(module)
                await running.update_weights(Weights(module, tokenizer, tmp_path / "w", version), version)
            assert running.verified < TOLERANCE
        for prompt, one, task in zip(prompts, settings, tasks, strict=True):
            done = await task
            engines.check_generation(done, one)
            assert set(done.versions) == {0, 1, 2, 3}
            assert list(done.versions) == sorted(done.versions)
            check(models, prompt, done, one.temperature)


@pytest.mark.parametrize("wrong", ["swapped", "stale"])
@pytest.mark.parametrize("separate_process", [False, True])
async def test_tensors_that_are_swapped_or_stale_are_found_by_their_digests(
    engine: Any, tokenizer: Any, tmp_path: Path, wrong: str, separate_process: bool
) -> None:
    """Also where log-probabilities may differ by anything."""
    module = make_model()
    one, other = (f"model.layers.{number}.self_attn.o_proj.weight" for number in range(2))
    kept = module.get_parameter(one).detach().clone()

    class Wrong(Weights):
        def tensors(self, *, merged: bool = True) -> Any:
            for name, tensor in super().tensors():
                if wrong == "swapped" and name in (one, other):
                    yield name, module.get_parameter(other if name == one else one).detach()
                else:
                    yield name, kept if wrong == "stale" and name == one else tensor

    async with engine(module, separate_process=separate_process, tolerance=100.0) as running:
        change(module, by=1e-6)
        count = 2 if wrong == "swapped" else 1
        with pytest.raises(EngineError, match=rf"version 1 vLLM doesn't .* {count} of \d+ tensors differ, '{one}'"):
            await running.update_weights(Wrong(module, tokenizer, tmp_path / "w", 1), 1)


async def test_stop_strings_and_stop_ids_spelled_over_tokens(engine: Any, tokenizer: Any) -> None:
    """`</tool_call>` is one token, and is found as well where the model spells it in bytes; a stop id counts for the
    one token only."""

    import torch

    module = make_model(tied=False)
    spelled = tokenizer.encode("</tool_call", add_special_tokens=False) + tokenizer.encode(
        ">", add_special_tokens=False
    )
    mark = BYTES + 2
    assert len(spelled) == 12
    assert tokenizer.decode([mark]) == tokenizer.decode(spelled) == "</tool_call>"
    async with engine(module) as running:
        # The model says the next byte of the mark, whatever comes before: its output layer is turned at each step.
        plan = iter([*spelled, 40, 41])
        sampler = await running._driver.call(
            lambda: (
                running._driver.engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.sampler
            )
        )
        forward = sampler.apply_logits_processors

        def scripted(logits: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            logits = forward(logits, *args, **kwargs)
            token = next(plan)
            logits.fill_(-50.0)
            logits[:, token] = 50.0
            return logits

        sampler.apply_logits_processors = scripted
        sampling = Sampling(14, stop=("</tool_call>",), stop_token_ids=(mark,), seed=1)
        done = await running.generate(PROMPT, sampling, session="a")
        assert done.ids == tuple(spelled)
        assert (done.finish, done.stopped_by) == ("stop", "</tool_call>")
        plan = iter([40, 41, mark, 42])
        done = await running.generate(PROMPT, sampling, session="a")
        assert (done.ids, done.finish) == ((40, 41, mark), "stop")
        assert done.stopped_by in (mark, "</tool_call>")
