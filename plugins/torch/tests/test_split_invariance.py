"""How the turns of an episode are spread over trajectories changes neither its loss nor its gradients: in float64, with
a model whose layers compute in it too."""

from __future__ import annotations

import itertools
import pickle
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from toolrl.loop.ranks import ONE
from toolrl.types import Episode, Group, RewardEntry, Task

SIZES = ((3, 2), (1, 4, 2), (2, 2))
"""Turns of the episodes of each group."""
AGGREGATIONS = ("token_mean", "sequence_mean", "sequence_sum", "constant")
ALGORITHMS = [
    {"preset": "grpo", "loss_aggregation": aggregation, "baseline": baseline, "scale": scale, **of}
    for aggregation, baseline, scale, of in itertools.product(
        AGGREGATIONS,
        ("group_mean", "leave_one_out", "batch_mean"),
        ("std", "none", "batch_std", "advantage_std"),
        ({"credit": "episode"}, {"credit": "turn"}, {"credit": "turn", "discount": 0.9}),
    )
    if (baseline, scale) != ("batch_mean", "std")
]
TERMS = (
    {},
    {"kl_coef": 0.1, "entropy_coef": 0.01},
    {"importance": {"level": "token"}, "rejection": {"level": "token"}},
    {"surrogate": "cispo", "clip_high": 4.0},
)
"""What else a loss may have that is of tokens."""
BUDGETS = (30, 90, 10_000)
WORKER = Path(__file__).parent / "ranks_worker.py"


def conversations(vocabulary: int, make_episode: Callable[..., Episode]) -> list[Group]:
    """Groups whose prompts are worth sharing, with rewards of turns and of episodes."""
    chance, groups = random.Random(5), []

    def words(count: int) -> list[int]:
        return [chance.randrange(3, vocabulary) for _ in range(count)]

    beginning = words(34)
    for number, turns in enumerate(SIZES):
        prompt, episodes = [*beginning, *words(4)], []
        for index, count in enumerate(turns):
            ids, mask = list(prompt), [0] * len(prompt)
            for _ in range(count):
                said = chance.randint(1, 7)
                ids += words(said + 3)
                mask += [1] * said + [0] * 3
            steps = [RewardEntry(turn, "step:tool", chance.random()) for turn in range(count)]
            of_user = RewardEntry(None, "reward:u", chance.random(), role="user")
            rewards = (RewardEntry(None, "reward:r", chance.random()), of_user, *steps)
            named = {"index": index, "group": str(number), "id": f"{number}#{index}", "rewards": rewards}
            episodes.append(make_episode(tuple(mask), ids=tuple(ids), **named))
        groups.append(Group(str(number), Task(str(number), ()), tuple(episodes)))
    return groups


def spread(tiny: Any, groups: Sequence[Group], chance: random.Random) -> list[Group]:
    """The same episodes, each with its turns dealt to up to three trajectories in any order, and with one that restates
    them all: of a role that isn't trained, or without a token of its own."""
    found = []
    for group in groups:
        episodes = []
        for episode in group.episodes:
            cut = tiny.spread(episode, [chance.randrange(3) for _ in episode.turns])
            assert cut.sampled_tokens == episode.sampled_tokens
            assert cut.turns == episode.turns
            silent = replace(episode.main, turns=(), role="user", trained=False)
            if chance.choice([True, False]):
                nothing = (0,) * len(silent.ids)
                silent = replace(silent, loss_mask=nothing, logprobs=nothing, role="agent", trained=True)
            trajectories = [*cut.trajectories, silent]
            chance.shuffle(trajectories)
            episodes.append(replace(episode, trajectories=tuple(trajectories)))
        found.append(replace(group, episodes=tuple(episodes)))
    return found


def case(groups: Sequence[Group], algorithm: Mapping[str, Any], updates: int, budget: int, share: bool) -> Any:
    """For `ranks_worker.train`."""
    own = {"updates_per_step": updates, "tokens_per_microbatch": budget, "share_prefix": share}
    limits = {"learning_rate": 1e-3, "steps": 10, "max_grad_norm": 1e9}
    return {"settings": {**limits, **own}, "algorithm": algorithm, "steps": [groups], "gradients": True}


def difference(one: Any, other: Any) -> float:
    """The greatest of the losses, relative to the loss or to 1, and of the gradients, relative to their greatest."""
    assert one[1].keys() == other[1].keys()
    losses = [metrics[0]["loss"] for metrics, _ in (one, other)]
    gradients = [
        float((ours - theirs).abs().max() / ours.abs().max())
        for ours, theirs in zip(one[1].values(), other[1].values(), strict=True)
    ]
    return max(abs(losses[0] - losses[1]) / max(abs(losses[0]), 1.0), *gradients)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.reuse, Phase.generate],
)  # fmt: skip
@given(chance=st.randoms(use_true_random=False))
def test_neither_loss_nor_gradients_depend_on_how_turns_are_spread(
    chance: random.Random, tiny: Any, train: Any, make_episode: Any, tmp_path: Path
) -> None:
    """Also not on the order of trajectories, on those that restate without being trained, on budgets."""
    model, groups = tiny.model("gpt2", dtype="float64"), conversations(tiny.vocabulary, make_episode)
    algorithm = {**chance.choice(ALGORITHMS), **chance.choice(TERMS)}
    # Sharing also decides which episodes stand together in an update.
    updates, share = chance.choice([1, 2]), chance.choice([False, True])
    one, other = (
        train(model, case(of, algorithm, updates, chance.choice(BUDGETS), share), tmp_path, ONE)
        for of in (groups, spread(tiny, groups, chance))
    )
    assert difference(one, other) < 1e-9


@pytest.mark.parametrize("aggregation", [None, *(pytest.param(it, marks=pytest.mark.slow) for it in AGGREGATIONS)])
def test_nor_do_they_over_two_ranks(
    aggregation: str | None, tiny: Any, train: Any, make_episode: Any, on_ranks: Any, tmp_path: Path
) -> None:
    """Some combinations of all settings over two ranks; slowly all of them, over one and two."""
    model, groups = tiny.model("gpt2", dtype="float64"), conversations(tiny.vocabulary, make_episode)
    chance = random.Random(0)
    algorithms = [it for it in ALGORITHMS if aggregation in (None, it["loss_aggregation"])]
    every = list(itertools.product(algorithms, (1, 2), (False, True)))
    cases, expected = {}, {}
    for algorithm, updates, share in every if aggregation else chance.sample(every, 2):
        terms = {**algorithm, **chance.choice(TERMS)}
        whole = train(model, case(groups, terms, updates, 10_000, share), tmp_path, ONE)
        for budget in BUDGETS:
            name = str(len(cases))
            cases[name], expected[name] = case(spread(tiny, groups, chance), terms, updates, budget, share), whole
    (tmp_path / "work.pkl").write_bytes(pickle.dumps({"model": model, "cases": cases}))
    on_ranks(2, [sys.executable, str(WORKER), str(tmp_path)])
    found = torch.load(tmp_path / "results.pt", weights_only=False)
    differences = [difference(expected[name], result) for name, result in found.items()]
    if aggregation:
        differences += [difference(expected[name], train(model, it, tmp_path, ONE)) for name, it in cases.items()]
    print(f"{len(differences)} combinations, greatest difference {max(differences):.1e}")
    assert len(found) == len(cases)
    assert max(differences) < 1e-9
