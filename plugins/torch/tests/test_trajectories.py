"""Episodes of several trajectories: the gradient is the expected reward's; roles are compared with themselves."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from toolrl.errors import RunStoppedError
from toolrl.loop.ranks import ONE
from toolrl.types import Episode, EpisodeFailure, Group, RewardEntry, Segment, Task, Trajectory, Turn
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.objective.credit import credit, is_flat, token_advantages


def decision(index: int, prompt: Sequence[int], choice: int, **fields: Any) -> Trajectory:
    """One sampled token after a prompt."""
    start = len(prompt)
    turn = Turn(index, (Segment("model", "x", (start, start + 1)),), (), (), "stop")
    mask, logprobs, versions = (*(0,) * start, 1), (0.0,) * (start + 1), (-1,) * start + (0,)
    return Trajectory((*prompt, choice), mask, logprobs, versions, start, (turn,), **fields)


def episode(index: int, trajectories: Sequence[Trajectory], rewards: Sequence[RewardEntry], **fields: Any) -> Episode:
    return Episode(
        f"g#{index}", Task("t", ()), "default", "g", index, tuple(trajectories), "answer",
        rewards=tuple(rewards), **fields,
    )  # fmt: skip


def test_the_expected_gradient_is_that_of_the_expected_reward(tiny: Any, train: Any, tmp_path: Path) -> None:
    """Of a model of two tokens, over all groups of two episodes with three decisions: of the agent, of a sub-agent that
    is told what it chose, and of the agent after its history was replaced by a summary of both choices."""
    chance = random.Random(0)
    model = tiny.model("gpt2", dtype="float64", vocab_size=2, bos_token_id=1, eos_token_id=1)
    values = {choices: chance.randint(-8, 8) / 4 for choices in itertools.product(range(2), repeat=3)}

    def prompts(choices: Sequence[int]) -> list[tuple[int, ...]]:
        return [(1, 0), (1, 1, 0, choices[0]), (0, 0, 1, *choices[:2])]

    def probability(choices: Sequence[int]) -> torch.Tensor:
        logprobs = []
        for prompt, choice in zip(prompts(choices), choices, strict=True):
            ids = torch.tensor([[*prompt, choice]])
            logprobs.append(tiny.naive(model, ids, torch.ones_like(ids))[0][0, -1])
        return torch.stack(logprobs).sum().exp()

    def played(index: int, choices: tuple[int, ...]) -> Episode:
        found = [decision(turn, prompt, choices[turn]) for turn, prompt in enumerate(prompts(choices))]
        return episode(index, found, [RewardEntry(None, "reward:r", values[choices])])

    likely = {choices: probability(choices) for choices in values}
    assert sum(it.item() for it in likely.values()) == pytest.approx(1.0, abs=1e-12)
    reward = torch.stack([likely[choices] * value for choices, value in values.items()]).sum()
    analytic = torch.cat([it.flatten() for it in torch.autograd.grad(reward, list(model.parameters()))])
    expected = torch.zeros_like(analytic)
    settings = {"learning_rate": 1e-3, "steps": 1, "max_grad_norm": 1e9, "tokens_per_microbatch": 12}
    algorithm = {"baseline": "leave_one_out", "scale": "none", "loss_aggregation": "sequence_sum"}
    for pair in itertools.product(values, repeat=2):
        group = Group("g", Task("t", ()), tuple(played(index, choices) for index, choices in enumerate(pair)))
        case = {"settings": settings, "algorithm": algorithm, "steps": [[group]], "gradients": True}
        for gradient in train(model, case, tmp_path, ONE)[1].values():
            expected -= (likely[pair[0]] * likely[pair[1]]).item() * gradient
    assert analytic.abs().max() > 1e-2
    assert (expected - analytic).abs().max() < 1e-12


SETTINGS = [
    {"baseline": baseline, "scale": scale, **of}
    for baseline in ("group_mean", "leave_one_out", "batch_mean")
    for scale in ("std", "none", "batch_std", "advantage_std")
    for of in ({"credit": "episode"}, {"credit": "turn", "discount": 0.5})
    if (baseline, scale) != ("batch_mean", "std")
]


def expected_advantages(
    groups: Sequence[Group], settings: dict[str, Any], compared: Any
) -> dict[tuple[str, int], float]:
    """By episode and turn, one role after the other."""
    found: dict[tuple[str, int], float] = {}
    how = settings["baseline"], settings["scale"]
    for role in "ab":
        every = [(it, number) for number, group in enumerate(groups) for it in group.scored]
        every = [(it, number) for it, number in every if any(part.role == role for part in it.trajectories)]
        entries = [[entry for entry in it.rewards if entry.role in (None, role)] for it, _ in every]
        whole = settings["credit"] == "episode"
        outcomes = [sum(e.value for e in of if whole or e.turn is None or e.source == "call_cost") for of in entries]
        if not every:
            continue
        base = compared(outcomes, [number for _, number in every], *how)
        steps: dict[tuple[int, int], float] = {}
        for row, of in enumerate(entries):
            for e in of:
                if not whole and e.turn is not None and e.source != "call_cost":
                    steps[row, e.turn] = steps.get((row, e.turn), 0.0) + e.value
        later = compared(list(steps.values()), [every[row][1] for row, _ in steps], *how)
        given = dict(zip(steps, later, strict=True))
        for row, (it, _) in enumerate(every):
            order = [turn.index for turn in it.turns]
            for turn in (turn.index for part in it.trajectories if part.role == role for turn in part.turns):
                place = order.index(turn)
                powers = [settings.get("discount", 1.0) ** k for k in range(len(order) - place)]
                own = [given.get((row, other), 0.0) for other in order[place:]]
                found[it.id, turn] = base[row] + float(np.dot(powers, own))
    return found


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda it: "-".join(map(str, it.values())))
def test_credit_is_that_of_the_formulas(settings: Any, beside: Any) -> None:
    """Of two roles with turns in any order, rewards of the episode, of turns and of roles, and failures."""
    chance = random.Random(3)
    for _ in range(20):
        groups = []
        for number in range(3):
            episodes = []
            for index in range(chance.randint(1, 4)):
                roles = [chance.choice("ab") for _ in range(chance.randint(1, 5))]
                parts = [decision(turn, (1,) * (turn + 1), 2, role=role) for turn, role in enumerate(roles)]
                chance.shuffle(parts)
                rewards = [RewardEntry(None, "reward:r", chance.choice([0.0, 1.0]))]
                for _ in range(chance.randint(0, 4)):
                    source = chance.choice(["step:x", "reward:r", "call_cost"])
                    turn, role = chance.choice([None, *range(len(roles))]), chance.choice([None, "a", "b"])
                    rewards.append(RewardEntry(turn, source, chance.choice([0.0, 0.5, 1.0]), role=role))
                failure = EpisodeFailure("tool", "x", "y") if chance.random() < 0.2 else None
                found = episode(index, parts, rewards, failure=failure)
                episodes.append(replace(found, id=f"{number}#{index}"))
            groups.append(Group(str(number), Task("t", ()), tuple(episodes)))
        credited = credit(groups, AlgorithmConfig(**settings))
        expected = expected_advantages(groups, settings, beside("advantage_reference").compared)
        for it, advantage in zip(credited.episodes, credited.advantages, strict=True):
            for part in it.trajectories:
                (turn,) = part.turns
                assert token_advantages(part, advantage)[-1] == pytest.approx(expected[it.id, turn.index], abs=1e-9)


def game(index: int, first: float) -> Episode:
    """Two players; what one wins the other loses."""
    players = [decision(n, (1, 2 + n), 8 + index, role=role) for n, role in enumerate("ab")]
    won = [RewardEntry(None, "reward:won", sign * first, role=role) for sign, role in ((1, "a"), (-1, "b"))]
    return episode(index, players, [RewardEntry(0, "step:move", 0.5), *won])


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda it: "-".join(map(str, it.values())))
def test_players_get_opposite_advantages(settings: Any) -> None:
    group = Group("g", Task("t", ()), (game(0, 1.0), game(1, -1.0), game(2, -1.0)))
    found = credit([group], AlgorithmConfig(**settings)).advantages
    by_turn: Any = list(found)
    assert [it.keys() for it in by_turn] == [{0, 1}] * 3
    assert all(it[0] == pytest.approx(-it[1]) and abs(it[0]) > 0.4 for it in by_turn)
    assert by_turn[0][0] > 0 > by_turn[1][0] == by_turn[2][0]
    assert not is_flat(group, AlgorithmConfig())
    drawn = replace(group, episodes=tuple(game(index, 1.0) for index in range(3)))
    assert is_flat(drawn, AlgorithmConfig()), "both players always got the same"


def test_a_critic_refuses_what_is_no_chain_of_turns(tiny: Any, tmp_path: Path) -> None:
    trainer = tiny.trainer(tmp_path, algorithm={"preset": "ppo"})
    with pytest.raises(RunStoppedError, match="episode g#0 has 2 trajectories"):
        trainer.update([Group("g", Task("t", ()), (game(0, 1.0), game(1, -1.0)))])
