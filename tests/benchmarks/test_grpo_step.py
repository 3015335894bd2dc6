"""The benchmark of a GRPO step on few episodes: both sides train on the same tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="the comparison needs TRL: pip install 'trl>=1.16'")
pytest.importorskip("toolrl_plugin_transformers", reason="needs the embedded engine")
pytest.importorskip("toolrl_plugin_qwen", reason="needs the parser hermes")

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import grpo_step

    monkeypatch.setattr(grpo_step, "PROMPTS", 2)
    monkeypatch.setattr(grpo_step, "GROUP", 2)
    yield grpo_step
    for name in ("grpo_step", "grpo_step_overlapped"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("mode", ["instant", "instant_spread"])
def test_both_sides_train_on_the_same_episodes(bench: Any, mode: str) -> None:
    figures = bench.compare(mode, 1, bench.Options(trl_batch=2), lambda line: None)
    assert figures["ratio"] > 0
    assert figures["prompt_tokens"]["ours"] == pytest.approx(figures["prompt_tokens"]["trl"], abs=8)
    length = figures["completion_tokens"]
    assert length["ours"] == length["trl"]
    assert length["ours"] == 128 if mode == "instant" else 60 < length["ours"] < 120
    assert figures["sampled_tokens"] < 4 * length["ours"]


def test_with_slow_tools_the_overlapped_training_is_measured_too(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []

    def latency(a: int, b: int) -> float:
        calls.append((a, b))
        return 0.01

    monkeypatch.setitem(bench.MODES, "slow", bench.Mode(latency=latency))
    options = bench.Options(trl_batch=2, staleness=1, async_steps=2)
    figures = bench.compare("slow", 1, options, lambda line: None)
    assert {"ratio", "ratio_async", "ratio_async_cpu"} <= figures.keys()
    assert figures["seconds"].keys() == {"ours", "trl", "async"}
    assert figures["max_staleness"] == 1
    assert 0 <= figures["staleness_mean"] <= 1
    mine = {bench.numbers(prompt, episode) for prompt in range(2) for episode in range(2)}
    assert set(calls) == mine, "the tool is slow on all sides alike"
    assert len(calls) >= 4 + 4 + 5 * 4, "TRL's step, ours, and the steps of the overlapped training"


def test_latencies_are_fixed_and_capped(bench: Any) -> None:
    drawn = [bench.lognormal(a, b) for a in range(100, 130) for b in range(100, 200)]
    assert drawn[:3] == [bench.lognormal(100, b) for b in (100, 101, 102)]
    assert max(drawn) == 5.0
    assert 0.45 < sum(drawn) / len(drawn) < 0.55, "exp(−1 + 0.8² / 2) is 0.51"
    assert sorted(drawn)[len(drawn) // 2] == pytest.approx(0.368, rel=0.1)
