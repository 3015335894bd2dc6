"""The benchmark of training with slow tools: its configs, its slow tool, its sums."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("toolrl_plugin_transformers")
pytest.importorskip("toolrl_plugin_calculator")
pytest.importorskip("toolrl_plugin_math")
pytest.importorskip("toolrl_plugin_qwen")

pytestmark = pytest.mark.slow

from toolrl.config.load import load_config
from toolrl.protocols import EpisodeContext
from toolrl.testing.fakes import make_build_context, make_task
from toolrl.tools import as_toolset
from toolrl.types import ToolCall


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import async_throughput

    yield async_throughput
    sys.modules.pop("async_throughput", None)


def test_every_mode_is_a_config(bench: Any, tmp_path: Path) -> None:
    for mode, changes in bench.MODES.items():
        config = load_config(
            bench.QUICKSTART / "grpo.yaml", bench.settings(mode, 7, tmp_path), registry=bench.registry()
        )
        assert config.config.rollout.max_staleness == {"sync": 0, "async": 4}[mode]
        assert [use.use for use in config.config.environments["default"].tools] == ["slow_calculator"], changes


def test_the_calculator_is_slow_in_training_only(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(bench.time, "sleep", slept.append)
    context = make_build_context("slow_calculator")
    toolset = as_toolset(bench.build(None, context), None, context)

    async def call(training: bool) -> str:
        episode = EpisodeContext("e#0", make_task(), random.Random(0), training=training)
        await toolset.start()
        async with toolset.open(episode.task, episode) as session:
            result = await session.call(ToolCall("calculator", {"expression": "6 * 7"}))
        await toolset.stop()
        return str(result.text)

    assert asyncio.run(call(False)) == "42"
    assert slept == []
    assert [asyncio.run(call(True)) for _ in range(200)] == ["42"] * 200
    assert len(slept) == 200
    assert max(slept) <= 5.0
    assert 0.35 < sum(slept) / 200 < 0.75, "0.51 in the mean"


def test_the_summary_compares_each_mode_with_taking_turns(bench: Any) -> None:
    def row(speed: float, accuracy: float) -> dict[str, float]:
        names = ("seconds_per_step", "waiting_per_step", "processor_seconds", "accuracy_start", "staleness")
        return {"samples_per_second": speed, "accuracy": accuracy, **dict.fromkeys(names, 1.0)}

    runs = {"sync": [row(10, 0.9), row(20, 0.8), row(10, 0.7)], "async": [row(30, 0.9), row(40, 0.9), row(15, 0.6)]}
    found = bench.summary(runs)
    assert found["async"]["ratio"] == 2.0
    assert found["async"]["samples_per_second"] == 30
    assert found["async"]["accuracy_mean"] == pytest.approx(0.8)
    assert (found["sync"]["accuracy_least"], found["sync"]["accuracy_most"]) == (0.7, 0.9)
    assert "| `async` | 30.0 | 2.00 | 1.0, 1.0 | 1.0 | 80.0% (60.0% to 90.0%) |" in bench.table(found)
