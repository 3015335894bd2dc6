"""vLLM's model in processes of its own: what crashes there fails requests here and leaves nothing, and a model that
several processes share computes what the trainer does."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest
from vllm_help import Weights, apart, change, make_family, make_model, most_sampled, needs_vllm

from toolrl.errors import EngineError
from toolrl.types import Sampling
from toolrl_plugin_vllm import build
from toolrl_plugin_vllm.options import VllmEngineOptions

pytestmark = [pytest.mark.timeout(600)]
PROMPT = tuple(range(40, 100))


def workers() -> list[Any]:
    """Processes that hold a part of the model. Python's own tracker of shared memory stays until this process ends."""
    import psutil

    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in " ".join(child.cmdline())
    ]


@needs_vllm
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_process_that_dies_fails_what_is_under_way_and_leaves_nothing(
    engine: Any, tokenizer: Any, tmp_path: Path, how: signal.Signals
) -> None:
    import psutil

    module = make_model()
    async with engine(module, separate_process=True) as running:
        (worker,) = found = workers()
        tasks = [
            asyncio.ensure_future(running.generate(PROMPT, Sampling(190, seed=n), session=str(n))) for n in range(8)
        ]
        driver = running._driver
        while not await driver.call(lambda: most_sampled(driver.engine) > 2):
            pass
        worker.send_signal(how)
        done = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 240)
        assert all(isinstance(one, EngineError) for one in done), done
        with pytest.raises(EngineError, match="the engine failed"):
            await running.generate(PROMPT, Sampling(4), session="later")
        with pytest.raises(EngineError, match="the engine failed"):
            await running.update_weights(Weights(module, tokenizer, tmp_path / "w", 1), 1)
        assert not running._sessions
    assert not psutil.wait_procs(found, timeout=60)[1]
    assert not workers()


@needs_vllm
@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("llama", False)])
async def test_two_processes_share_a_model(
    engine: Any, tokenizer: Any, tmp_path: Path, family: str, tied: bool
) -> None:
    module = make_family(family, tied=tied)
    async with engine(module, tensor_parallel=2) as running:
        assert len(workers()) == 2
        for version in range(3):
            if version:
                change(module, version)
                await running.update_weights(Weights(module, tokenizer, tmp_path / "w", version), version)
            assert running.verified < 1e-4
            done = await running.generate(PROMPT, Sampling(16, temperature=0.8, seed=1), session="a")
            assert apart(module, PROMPT, done, 0.8) < 1e-4
            assert set(done.versions) == {version}
    assert not workers()


# Devices, as arguments: no test here has a GPU.


@pytest.mark.parametrize(
    ("options", "device", "devices", "fraction", "backend"),
    [
        ({}, "cuda", None, 0.4, None),
        ({}, "cuda:0", None, 0.4, None),
        ({}, "cuda:1", [1], 0.4, None),
        ({}, "cpu", None, 0.9, None),
        ({"separate_process": True}, "cuda:1", [1], 0.4, "mp"),
        ({"devices": [1]}, "cuda:0", [1], 0.9, None),
        ({"devices": [1]}, "cuda", [1], 0.9, None),
        ({"devices": [0]}, "cuda", [0], 0.4, None),
        ({"devices": [1, 2]}, "cuda:0", [1, 2], 0.9, "mp"),
        ({"devices": [0, 1]}, "cuda:0", [0, 1], 0.4, "mp"),
        ({"tensor_parallel": 2}, "cuda:1", None, 0.4, "mp"),
        ({"devices": [1], "memory_fraction": 0.6}, "cuda:0", [1], 0.6, None),
    ],
)
def test_devices_and_what_vllm_takes_of_them(
    options: dict[str, Any], device: str, devices: list[int] | None, fraction: float, backend: str | None
) -> None:
    chosen = VllmEngineOptions(**options)
    told = build.arguments(chosen, model="m", dtype=None, cpu=False, device=device)
    assert told.get("device_ids") == devices
    assert told["gpu_memory_utilization"] == fraction
    assert told.get("distributed_executor_backend") == backend
    assert told.get("tensor_parallel_size", 1) == chosen.parts
