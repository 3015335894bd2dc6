"""An update whose sequences ranks share is that of one process: metrics, gradients, and what is refused."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.loop.ranks import ONE

RANK = Path(__file__).with_name("sequence_rank.py")
Compared = Callable[[int, dict[str, dict[str, Any]]], dict[str, tuple[dict[str, Any], dict[str, Any]]]]
KL: dict[str, Any] = {"preset": "gspo", "kl_coef": 0.1, "entropy_coef": 0.01, "scale": "none"}


@pytest.fixture
def compared(tiny: Any, on_ranks: Any, tmp_path: Path) -> Compared:
    """By case, what so many ranks give, and what one process does."""

    def run(size: int, cases: dict[str, dict[str, Any]]) -> dict[str, Any]:
        sys.path.insert(0, str(RANK.parent))
        try:
            from sequence_rank import work
        finally:
            sys.path.remove(str(RANK.parent))

        def group(rewards: Sequence[float], seed: int) -> Any:
            lengths = [7 + (5 * index + 3 * seed) % 11 for index in range(len(rewards))]
            return tiny.group(rewards, seed, prompt=40, lengths=lengths)

        # The second step has one micro-batch: other groups of ranks make an empty pass.
        steps = [[group([1.0, 0.0, 0.5], 1), group([0.0, 2.0], 2), group([0.5, 1.0], 3)], [group([1.0, 0.0], 4)]]
        plain = {"model": "qwen3", "algorithm": {"preset": "grpo", "scale": "none"}, "steps": steps}
        cases = {name: {**plain, **case} for name, case in cases.items()}
        models = {case["model"]: tiny.model(case["model"]) for case in cases.values()}
        (tmp_path / "work.pkl").write_bytes(pickle.dumps({"models": models, "cases": cases}))
        on_ranks(size, [sys.executable, str(RANK), str(tmp_path)])
        found = torch.load(tmp_path / "found.pt", weights_only=False)
        return {name: (found[name], work(models[case["model"]], case, tmp_path, ONE)) for name, case in cases.items()}

    return run


def settings(ranks: int, **more: Any) -> dict[str, Any]:
    return {"sequence_parallel": ranks, "tokens_per_microbatch": 80, **more}


def check(ours: dict[str, Any], one: dict[str, Any], name: str, of_loss: float, of_gradients: float) -> None:
    for mine, expected in zip(ours["metrics"], one["metrics"], strict=True):
        assert mine.keys() == expected.keys(), name
        for key, value in expected.items():
            tolerance = of_loss if key == "loss" else of_gradients
            assert mine[key] == pytest.approx(value, rel=tolerance, abs=tolerance), (name, key)
    for first, second in zip(ours["gradients"], one["gradients"], strict=True):
        assert first.keys() == second.keys()
        largest = max(float(gradient.abs().max()) for gradient in second.values())
        for key, value in second.items():
            assert float((first[key] - value).abs().max()) <= of_gradients * largest, (name, key)


def test_ranks_update_as_one_process_does(compared: Compared) -> None:
    cases: dict[str, dict[str, Any]] = {
        "grouped": {"settings": settings(2)},
        "kl, entropy, ratios of sequences": {"settings": settings(2, updates_per_step=2), "algorithm": KL},
        "untied, checkpointing": {"settings": settings(2), "model": "llama", "checkpointing": True},
        "float32": {"settings": settings(2), "dtype": "float32"},
        "compiled": {"settings": settings(2), "compile": True, "dtype": "float32"},
    }
    for name, (ours, one) in compared(2, cases).items():
        check(ours, one, name, *((1e-6, 1e-5) if "dtype" in cases[name] else (1e-10, 1e-10)))
