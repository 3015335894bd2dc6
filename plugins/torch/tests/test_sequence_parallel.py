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

RANK = Path(__file__).with_name("sequence_rank.py")
EXACT, ROUNDED = (1e-10, 1e-10), (1e-6, 1e-5)
"""Relative tolerance of the loss, and of gradients to the greatest of all: in float64, and where something is rounded
to float32, as in the norms of qwen3 and llama."""


def cases(group: Callable[..., Any], size: int) -> dict[str, dict[str, Any]]:
    """By name. Of the second step's groups there are fewer than of ranks, so some make empty passes."""
    steps = [[group([1.0, 0.0, 0.5], 1), group([0.0, 2.0], 2), group([0.5, 1.0], 3)], [group([1.0, 0.0], 4)]]
    settings = {"sequence_parallel": size, "tokens_per_microbatch": 80}
    plain = {
        "model": "phi", "close": EXACT, "steps": steps, "settings": settings,
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
            "compiled": {"compile": True, "steps": steps[1:]},
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
def test_ranks_update_as_one_process_does(tiny: Any, on_ranks: Any, tmp_path: Path, size: int) -> None:
    """Also: what a rank keeps for the backward pass is its share, and models that can't be cut are refused."""
    sys.path.insert(0, str(RANK.parent))
    try:
        from sequence_rank import work
    finally:
        sys.path.remove(str(RANK.parent))

    def group(rewards: Sequence[float], seed: int, lengths: Sequence[int] = (7, 16, 11)) -> Any:
        return tiny.group(rewards, seed, prompt=40, lengths=lengths)

    chosen = cases(group, size)
    models = {case["model"]: model_of(tiny, case["model"]) for case in chosen.values()}
    (tmp_path / "work.pkl").write_bytes(pickle.dumps({"models": models, "cases": chosen}))
    on_ranks(size, [sys.executable, str(RANK), str(tmp_path)])
    found = torch.load(tmp_path / "found.pt", weights_only=False)
    for name, case in chosen.items():
        if "refused" in case:
            assert f"can't cut sequences, because {case['refused']}" in found[name]["error"]
            continue
        one = work(models[case["model"]], case, tmp_path, ONE)
        check(found[name], one, name, *case["close"])
        if "saved" in case:
            assert found[name]["saved"] < one["saved"] * case["saved"], name


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
