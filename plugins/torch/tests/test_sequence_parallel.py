"""An update whose sequences ranks share is that of one process: metrics, gradients and less memory."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.loop.ranks import ONE
from toolrl.types import Group
from toolrl_plugin_torch.sampling_masks import encode

WORKER = Path(__file__).with_name("ranks_worker.py")
EXACT, ROUNDED = (1e-10, 1e-10), (1e-6, 1e-5)
"""Relative tolerance of the loss, and of gradients to the greatest of all: in float64, and where something is rounded
to float32, as in the norms of qwen3 and llama."""


def cases(group: Callable[..., Any], size: int) -> dict[str, dict[str, Any]]:
    """By name. Of the second step's groups there are fewer than of ranks, so some make empty passes."""
    steps = [[group([1.0, 0.0, 0.5], 1), group([0.0, 2.0], 2), group([0.5, 1.0], 3)], [group([1.0, 0.0], 4)]]
    settings = {"sequence_parallel": size, "tokens_per_microbatch": 80, "learning_rate": 1e-3, "steps": 4}
    plain = {
        "model": "phi", "close": EXACT, "steps": steps, "settings": settings, "gradients": True,
        "algorithm": {"preset": "grpo", "scale": "none"},
    }  # fmt: skip
    large = {"tokens_per_microbatch": 512}
    terms = {"preset": "gspo", "kl_coef": 0.1, "entropy_coef": 0.01}
    found: dict[int, dict[str, dict[str, Any]]] = {
        2: {
            "grouped heads": {},
            "terms of a loss": {"settings": {"updates_per_step": 2}, "algorithm": terms},
            "sampling masks": {"steps": [[truncated(it) for it in step] for step in steps], "algorithm": terms},
            "checkpointing": {"model": "llama", "checkpointing": True, "close": ROUNDED},
            "float32": {"model": "qwen3", "dtype": "float32", "close": ROUNDED},
            "memory": {"steps": [[group([1.0, 0.0], 5, lengths=(80, 70))]], "settings": large, "saved": 0.55},
            "windows": {"model": "mistral", "refused": "its attention sees a window of the latest 4 tokens only"},
            "heads": {"model": "one head", "refused": "its 1 attention heads can't be shared evenly by 2 ranks"},
        },
        4: {
            "more ranks than key heads": {},
            "two groups of ranks": {"settings": {"sequence_parallel": 2}},
            "memory": {"steps": [[group([1.0, 0.0], 5, lengths=(80, 70))]], "settings": large, "saved": 0.32},
            "compiled": {"backend": "aot_eager", "steps": steps[1:]},
        },
    }
    named = found[size]
    return {name: {**plain, **case, "settings": settings | case.get("settings", {})} for name, case in named.items()}


def truncated(group: Group) -> Group:
    """The same, each token drawn from itself and some greater ids."""
    episodes = []
    for episode in group.episodes:
        (it,) = episode.trajectories
        sampled = [token for token, bit in zip(it.ids, it.loss_mask, strict=True) if bit]
        masks = encode([range(token, token + 1 + token % 5) for token in sampled])
        episodes.append(replace(episode, trajectories=(replace(it, sampling_masks=masks),)))
    return replace(group, episodes=tuple(episodes))


def model_of(tiny: Any, name: str) -> Any:
    if name != "one head":
        return tiny.model(name)
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**tiny.shape | heads))


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_ranks_update_as_one_process_does(tiny: Any, train: Any, on_ranks: Any, tmp_path: Path, size: int) -> None:
    """Also: what a rank keeps for the backward pass is its share, and models that can't be cut are refused."""

    def group(rewards: Sequence[float], seed: int, lengths: Sequence[int] = (7, 16, 11)) -> Any:
        return tiny.group(rewards, seed, prompt=40, lengths=lengths)

    chosen = {name: {**case, "model": model_of(tiny, case["model"])} for name, case in cases(group, size).items()}
    (tmp_path / "work.pkl").write_bytes(pickle.dumps({"cases": chosen}))
    on_ranks(size, [sys.executable, str(WORKER), str(tmp_path)])
    found = torch.load(tmp_path / "results.pt", weights_only=False)
    for name, case in chosen.items():
        (metrics, gradients) = found[name]
        if "refused" in case:
            assert f"can't cut sequences, because {case['refused']}" in metrics[0]["refused"]
            continue
        one_metrics, one_gradients = train(None, case, tmp_path, ONE)
        if "saved" in case:
            assert gradients.pop("saved") < one_gradients.pop("saved") * case["saved"], name
        of_loss, of_gradients = case["close"]
        for mine, expected in zip(metrics, one_metrics, strict=True):
            assert mine.keys() == expected.keys(), name
            for key, value in expected.items():
                tolerance = of_loss if key == "loss" else of_gradients
                assert mine[key] == pytest.approx(value, rel=tolerance, abs=tolerance), (name, key)
        for key, value in one_gradients.items():
            assert float((gradients[key] - value).abs().max()) <= of_gradients * float(value.abs().max()), (name, key)
