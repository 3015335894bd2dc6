"""Sleep while the trainer works: down before the update and up after it.

A CPU has nothing to free: its worker passes over both calls. The scheduler's and the executor's part of it is the same
on every device, and is what runs here once the platform's word is taken back.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from vllm_help import Weights, apart, change, make_model, needs_vllm

from toolrl.errors import ConfigError, EngineError
from toolrl.protocols import BuildContext, Rests
from toolrl.types import Sampling
from toolrl_plugin_vllm.engine import VllmEngine
from toolrl_plugin_vllm.options import VllmEngineOptions
from toolrl_testing.fakes import FakeWeights

PROMPT = tuple(range(40, 100))


def test_what_samples_all_the_while_never_sleeps() -> None:
    context = BuildContext("vllm", weights=FakeWeights(), overlap=True)
    with pytest.raises(ConfigError, match="max_staleness above 0"):
        VllmEngine(VllmEngineOptions(sleep_level=2), context)
    assert isinstance(VllmEngine(None, context), Rests)


@needs_vllm
@pytest.mark.parametrize("separate_process", [False, True])
@pytest.mark.parametrize("level", [1, 2])
async def test_it_sleeps_until_the_weights_are_updated(
    engine: Any, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: int, separate_process: bool
) -> None:
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_sleep_mode_available", lambda self: True)

    module = make_model()
    async with engine(module, sleep_level=level, separate_process=separate_process) as running:
        inner, calls = running._driver.engine, []
        for name in ("sleep", "wake_up", "collective_rpc"):
            monkeypatch.setattr(inner, name, _noted(calls, name, getattr(inner, name)))
        await running.generate(PROMPT, Sampling(8, seed=1), session="a")
        await running.rest()
        await running.rest()  # it sleeps already
        assert await running._driver.call(inner.is_sleeping)
        with pytest.raises(EngineError, match="sleeps until its weights are updated"):
            await running.generate(PROMPT, Sampling(8, seed=1), session="a")
        change(module)
        await running.update_weights(Weights(module, tokenizer, tmp_path / "w", 1), 1)
        load = "toolrl_receive" if separate_process else "toolrl_load"
        assert calls == [
            ("sleep", level),
            ("wake_up", ["weights"]),
            ("collective_rpc", load),
            ("wake_up", ["kv_cache"]),
        ]
        assert not await running._driver.call(inner.is_sleeping)
        done = await running.generate(PROMPT, Sampling(8, seed=1), session="a")
        assert apart(module, PROMPT, done) < 1e-4
        assert (set(done.versions), done.cached) == ({1}, 0)
        # Without a rest between, an update wakes nothing.
        await running.update_weights(Weights(module, tokenizer, tmp_path / "w", 2), 2)
        assert [name for name, _ in calls[4:]] == ["collective_rpc"]
        await running.rest()  # and an engine that sleeps can be stopped


def _noted(calls: list[Any], name: str, method: Any) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        calls.append((name, args[0]))
        return method(*args, **kwargs)

    return noted


@needs_vllm
async def test_it_does_not_sleep_under_a_generation(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.platforms import current_platform

    monkeypatch.setattr(type(current_platform), "is_sleep_mode_available", lambda self: True)

    async with engine(make_model(), sleep_level=1) as running:
        task = asyncio.ensure_future(running.generate(PROMPT, Sampling(64, seed=1), session="a"))
        await asyncio.sleep(0)
        with pytest.raises(EngineError, match="can't sleep while 1 sessions are generating"):
            await running.rest()
        assert len((await task).ids) == 64
