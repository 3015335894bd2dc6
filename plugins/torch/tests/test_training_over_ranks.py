"""An update of several ranks is that of one process: losses, metrics and weights, on real process groups."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.loop.ranks import ONE
from toolrl.types import Group
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration

TOLERANCES = {"float32": (1e-6, 1e-4, 1e-5), "bfloat16": (2e-2, 2e-2, 1e-2), "frozen": (2e-2, 2e-2, 1e-2)}
"""Relative of the loss and of other metrics, absolute of weights. All other cases are in float64, where rounding is no
excuse."""
WORKER = Path(__file__).parent / "ranks_worker.py"
SETTINGS: dict[str, Any] = {"learning_rate": 1e-3, "steps": 10, "max_grad_norm": 0.5, "tokens_per_microbatch": 40}

PPO = {"preset": "ppo", "critic": {"level": "token"}, "kl_coef": 0.1, "kl_in": "reward"}


def make_group(tiny: Any, rewards: Sequence[float | None], seed: int) -> Group:
    lengths = [7 + (5 * index + 3 * seed) % 11 for index in range(len(rewards))]
    return tiny.group(rewards, seed, prompt=24, lengths=lengths)  # type: ignore[no-any-return]


def make_spread(tiny: Any, groups: Sequence[Group]) -> list[Group]:
    spread = [tuple(tiny.spread(episode, range(len(episode.turns))) for episode in it.episodes) for it in groups]
    return [replace(group, episodes=episodes) for group, episodes in zip(groups, spread, strict=True)]


def make_cases(group: Callable[..., Group], spread: Callable[[Sequence[Group]], Any]) -> dict[str, Any]:
    """By name. Steps of five groups don't divide by two or three; one group is flat, one episode failed. `spread` gives
    each turn a trajectory."""
    step = [group([1.0, 0.0, 0.5], 1), group([0.0, 0.0], 2), group([1.0, None, 0.0], 3), group([0.0, 2.0], 4)]
    later = [group([1.0, 0.0], 5), group([0.0, 1.0, 1.0, 1.0], 6), group([0.5, 1.0], 7)]
    whole = {"settings": {**SETTINGS, "share_prefix": False}, "algorithm": {"preset": "grpo"}, "steps": [step, later]}
    return {
        "grpo": whole,
        "shared": {**whole, "settings": SETTINGS},
        "kl and entropy": {
            **whole,
            "settings": {**SETTINGS, "weight_decay": 0.1},
            "algorithm": {"preset": "grpo", "kl_coef": 0.1, "entropy_coef": 0.01, "loss_aggregation": "sequence_mean"},
        },
        "reference": {
            **whole,
            "settings": {**SETTINGS, "epochs_per_step": 2},
            "algorithm": {"preset": "grpo", "kl_coef": 0.1, "reference": {"sync_every": 2}},
            "steps": [step, later, step, later],
            "resumed": 3,
        },
        "two updates": {**whole, "settings": {**SETTINGS, "updates_per_step": 2}, "algorithm": {"preset": "dapo"}},
        "ppo": {**whole, "settings": {**SETTINGS, "updates_per_step": 2, "epochs_per_step": 2}, "algorithm": PPO},
        "trajectories": {**whole, "settings": SETTINGS, "steps": [spread(step), spread(later[:1])]},
        "one group": {**whole, "settings": SETTINGS, "steps": [[group([1.0, 0.0], 8)]]},
        "nothing to learn": {**whole, "steps": [step, [group([1.0, 1.0], 9)], later]},
        "float32": {**whole, "settings": SETTINGS, "dtype": "float32"},
        "bfloat16": {**whole, "settings": SETTINGS, "dtype": "bfloat16"},
        # As with an adapter: few weights of each layer are trained, and the others stay in the model's precision.
        "frozen": {**whole, "settings": SETTINGS, "dtype": "bfloat16", "frozen": "_proj.weight"},
        "offload": {**whole, "settings": {**SETTINGS, "offload": ["optimizer"]}},
        "checkpointing": {**whole, "settings": SETTINGS, "checkpointing": True},
        "compiled": {**whole, "settings": SETTINGS, "checkpointing": True, "backend": "aot_eager"},
        "fine-tuning": {
            "settings": {"learning_rate": 1e-2, "steps": 4, "tokens_per_microbatch": 12},
            "demonstrations": [
                Demonstration((5, 6, 7, 8, 9, 10), (0, 0, 1, 1, 0, 1)),
                Demonstration((9, 8, 7, 6), (0, 1, 1, 1)),
                Demonstration((3, 4, 5, 6, 11, 12, 13), (0, 0, 0, 1, 1, 1, 1)),
            ],
        },
    }


@pytest.fixture
def compared(tiny: Any, train: Any, on_ranks: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The results of the cases of these names, or of all: those of so many ranks, and those of this process."""

    def run(size: int, names: Sequence[str]) -> dict[str, Any]:
        model, cases = tiny.model("qwen3"), make_cases(partial(make_group, tiny), partial(make_spread, tiny))
        cases = {name: cases[name] for name in names or cases}
        (tmp_path / "work.pkl").write_bytes(pickle.dumps({"model": model, "cases": cases}))
        on_ranks(size, [sys.executable, str(WORKER), str(tmp_path)])
        found = torch.load(tmp_path / "results.pt", weights_only=False)
        return {name: (found[name], train(model, case, tmp_path, ONE)) for name, case in cases.items()}

    return run


@pytest.mark.parametrize(
    ("size", "names"),
    [
        (2, ["ppo", "reference", "bfloat16", "frozen", "offload", "fine-tuning", "trajectories"]),
        pytest.param(1, ["shared", "ppo", "bfloat16"], marks=pytest.mark.slow),
        pytest.param(2, [], marks=pytest.mark.slow),
        pytest.param(3, ["shared", "kl and entropy", "one group"], marks=pytest.mark.slow),
    ],
    ids=["some", "one", "two", "three"],
)
def test_ranks_update_as_one_process_does(compared: Callable[..., dict[str, Any]], size: int, names: list[str]) -> None:
    """One rank takes the path of several. With three some have nothing to do; slowly, two go through all cases."""
    for name, (several, one) in compared(size, names).items():
        of_loss, of_metrics, of_weights = TOLERANCES.get(name, (1e-9, 1e-7, 1e-9))
        for ours, expected in zip(several[0], one[0], strict=True):
            assert ours.keys() == expected.keys(), name
            for key, value in expected.items():
                tolerance = of_loss if key == "loss" else of_metrics
                assert ours[key] == pytest.approx(value, rel=tolerance, abs=tolerance / 10), (name, key)
        for key, value in one[1].items():
            difference = float((several[1][key].double() - value.double()).abs().max())
            assert difference <= of_weights, (name, key, difference)
