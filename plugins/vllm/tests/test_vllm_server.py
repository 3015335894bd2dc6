"""The engine `openai` against a real vLLM server: exact tokens and log-probabilities, weights by a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from vllm_help import (
    BYTES,
    EXTRA,
    MODEL_IDS,
    Weights,
    apart,
    ask,
    change,
    logprobs_of,
    make_model,
    make_tokenizer,
    needs_vllm,
    openai_engine,
)
from vllm_server import VllmServer

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext
from toolrl.types import Sampling
from toolrl_plugin_vllm.options import OpenaiEngineOptions
from toolrl_plugin_vllm.server import OpenaiEngine
from toolrl_testing.checks import engines

pytestmark = [needs_vllm, pytest.mark.timeout(900)]

PROMPT = tuple(range(40, 100))
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    folder = tmp_path_factory.mktemp("server")
    running = VllmServer(Weights(make_model(), make_tokenizer(), folder / "model").path(), folder / "log")
    yield running
    running.stop()


def engine(server: VllmServer, module: Any, folder: Path, **options: Any) -> Any:
    return openai_engine(server.url, module, folder, worker_extension=True, **options)


async def test_samples_and_updates_are_the_trainers(server: VllmServer, tmp_path: Path) -> None:
    # The trainer's weights aren't those that the server was started with.
    module, tokenizer = make_model(3), make_tokenizer()
    async with engine(server, module, tmp_path) as running:
        assert running.verified is not None
        assert running.verified < TOLERANCE
        for version in (1, 2):
            settings = [
                Sampling(12, temperature=0.7, top_p=0.9, top_k=20, seed=1),
                Sampling(12, temperature=1.0, seed=2),
                Sampling(12, temperature=0.0),
            ]
            done = await ask(running, PROMPT, settings)
            for one, generation in zip(settings, done, strict=True):
                engines.check_generation(generation, one)
                assert set(generation.versions) == {version - 1}
                assert max(generation.ids) < BYTES + len(EXTRA) < MODEL_IDS
                assert apart(module, PROMPT, generation, one.temperature or 1.0) < TOLERANCE
            change(module, version)
            await running.update_weights(Weights(module, tokenizer, tmp_path / str(version), version), version)
            assert running.verified < TOLERANCE


async def test_a_teacher_scores_given_tokens(server: VllmServer, tmp_path: Path) -> None:
    """By an engine without weights of its own, on what the server holds."""
    module, tokenizer = make_model(5), make_tokenizer()
    async with engine(server, module, tmp_path):
        running = OpenaiEngine(OpenaiEngineOptions(url=server.url), BuildContext("openai", tokenizer=tokenizer))
        await running.start()
        try:
            texts = [(list(range(20, 60)), 5), (list(range(250, 259)), 1), (list(range(200, 90, -1)), 100)]
            found = await asyncio.gather(*(running.score(ids, start) for ids, start in texts))
            for (ids, start), values in zip(texts, found, strict=True):
                assert values == pytest.approx(logprobs_of(module, ids[:start], ids[start:]), abs=TOLERANCE)
            text = "a text <tool_call> with é<|im_end|>"
            assert await running.tokenize(text) == tokenizer.encode(text, add_special_tokens=False)
            with pytest.raises(EngineError, match="tokens to score from 1 on; the engine takes 2 to"):
                await running.score([1] * 5000, 1)
            with pytest.raises(EngineError, match="at temperature 1 only"):
                await running.score([1, 2, 3], 1, temperature=0.5)
        finally:
            await running.stop()


async def test_an_engines_contracts(server: VllmServer, tmp_path: Path) -> None:
    module = make_model(4)
    async with engine(server, module, tmp_path) as running:
        await engines.check_sampling(running, PROMPT)
        await engines.check_sessions(running, PROMPT)
        await engines.check_cancel(running, PROMPT, times=20)
        await engines.check_versions(running, PROMPT, Weights(module, make_tokenizer(), tmp_path / "7"))
        free = await running.generate(PROMPT, Sampling(16, temperature=0.0), session="a")
        stop = free.ids[5]
        cut = await running.generate(PROMPT, Sampling(16, temperature=0.0, stop_token_ids=(stop,)), session="a")
        assert cut.ids == free.ids[: free.ids.index(stop) + 1]
        assert (cut.finish, cut.stopped_by) == ("stop", stop)
        assert cut.cached >= 32
