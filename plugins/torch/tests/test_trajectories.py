"""Episodes of several trajectories: how turns are spread over them changes neither loss nor gradients, and the gradient
is that of the expected reward."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from toolrl.errors import RunStoppedError
from toolrl.types import Episode, Group, RewardEntry, Segment, Task, Trajectory, Turn
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.batch import episode_samples, pack
from toolrl_plugin_torch.objective.credit import credit, is_flat
from toolrl_plugin_torch.objective.loss import Normaliser, policy_loss

SIZES = ((3, 2), (1, 4, 2), (2, 2))
"""Turns of the episodes of each group."""
ALGORITHMS = [
    {"preset": "grpo", "loss_aggregation": aggregation, "baseline": baseline, "scale": scale, "credit": of}
    for aggregation, baseline, scale, of in itertools.product(
        ("token_mean", "sequence_mean", "sequence_sum", "constant"),
        ("group_mean", "leave_one_out", "batch_mean"),
        ("std", "none", "batch_std", "advantage_std"),
        ("episode", "turn"),
    )
    if (baseline, scale) != ("batch_mean", "std")
]


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
            rewards = (RewardEntry(None, "reward:r", chance.random()), *steps)
            named = {"index": index, "group": str(number), "id": f"{number}#{index}", "rewards": rewards}
            episodes.append(make_episode(tuple(mask), ids=tuple(ids), **named))
        groups.append(Group(str(number), Task(str(number), ()), tuple(episodes)))
    return groups


@pytest.fixture(scope="module")
def updated(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[dict[str, float], Any]]:
    """`updated(groups, algorithm, **settings)`: metrics of a step of the same model in float64, and the gradients of
    each of its updates."""
    model = tiny.model("qwen3", dtype="float64")

    def update(groups: Sequence[Group], algorithm: Any, **more: Any) -> tuple[dict[str, float], Any]:
        policy = tiny.policy(copy.deepcopy(model))
        folder = tmp_path_factory.mktemp("trainer")
        # AdamW divides a gradient by its size: a larger rate would show the last bits of those that cancel out.
        trainer = tiny.trainer(folder, policy, algorithm, longest=40, max_grad_norm=1e9, learning_rate=1e-6, **more)
        gradients: list[torch.Tensor] = []
        clip = trainer.optimizer.clip

        def noted() -> float:
            gradients.append(torch.cat([parameter.grad.flatten() for parameter in policy.model.parameters()]))
            return clip()  # type: ignore[no-any-return]

        trainer.optimizer.clip = noted
        return trainer.update(groups), gradients

    return update


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.reuse, Phase.generate],
)  # fmt: skip
@given(data=st.data())
def test_neither_loss_nor_gradients_depend_on_how_turns_are_spread(
    data: st.DataObject, tiny: Any, updated: Any, make_episode: Any
) -> None:
    """Also not on the order of trajectories, on those that restate without being trained, on budgets and sharing."""
    groups = conversations(tiny.vocabulary, make_episode)
    algorithm = dict(data.draw(st.sampled_from(ALGORITHMS)))
    if algorithm["credit"] == "turn":
        algorithm["discount"] = data.draw(st.sampled_from([1.0, 0.9]))
    if data.draw(st.booleans()):
        algorithm |= {"kl_coef": 0.1, "entropy_coef": 0.01}
    changed = []
    for group in groups:
        episodes = []
        for episode in group.episodes:
            parts = data.draw(st.lists(st.integers(0, 2), min_size=len(episode.turns), max_size=len(episode.turns)))
            cut = tiny.spread(episode, parts)
            assert cut.sampled_tokens == episode.sampled_tokens
            assert cut.turns == episode.turns
            silent = replace(episode.main, turns=(), trained=data.draw(st.booleans()))
            if silent.trained:
                nothing = (0,) * len(silent.ids)
                silent = replace(silent, loss_mask=nothing, logprobs=tuple(map(float, nothing)))
            trajectories = [*cut.trajectories, silent]
            order = data.draw(st.permutations(range(len(trajectories))))
            episodes.append(replace(episode, trajectories=tuple(trajectories[place] for place in order)))
        changed.append(replace(group, episodes=tuple(episodes)))
    common = {"updates_per_step": data.draw(st.integers(1, 2)), "share_prefix": data.draw(st.booleans())}
    budgets = st.sampled_from([30, 90, 10_000])
    one = updated(groups, algorithm, tokens_per_microbatch=data.draw(budgets), **common)
    other = updated(changed, algorithm, tokens_per_microbatch=data.draw(budgets), **common)
    # The model's norms compute in float32, and AdamW makes a step of a gradient of rounding only.
    loss, gradients = (1e-9, [1e-6]) if common["updates_per_step"] == 1 else (1e-4, [1e-6, 1e-3])
    assert one[0]["loss"] == pytest.approx(other[0]["loss"], rel=loss, abs=loss / 10)
    for ours, theirs, tolerance in zip(one[1], other[1], gradients, strict=True):
        assert (ours - theirs).abs().max() <= tolerance * ours.abs().max()


def test_what_a_trajectory_restates_is_computed_once(tiny: Any, make_episode: Any) -> None:
    """Where it is long enough to be worth a fork."""
    episode = make_episode((*(0,) * 50, *((1,) * 40 + (0,) * 10) * 3))
    cut = tiny.spread(episode, range(3))

    def positions(episode: Episode) -> int:
        return sum(batch.positions for batch in pack(episode_samples(episode, 1.0), 10_000, share=True))

    assert sum(len(trajectory.ids) for trajectory in cut.trajectories) == 90 + 140 + 190
    assert positions(cut) == positions(episode) == 189


def decision(index: int, prompt: Sequence[int], choice: int) -> Trajectory:
    """One sampled token, 8 or 9, after a prompt."""
    start = len(prompt)
    turn = Turn(index, (Segment("model", "x", (start, start + 1)),), (), (), "stop")
    given = (0,) * start
    return Trajectory((*prompt, 8 + choice), (*given, 1), (0.0,) * (start + 1), (-1,) * start + (0,), start, (turn,))


def test_the_expected_gradient_is_that_of_the_expected_reward() -> None:
    """All groups of two episodes with three decisions: of the agent, of a sub-agent that is told what it chose, and of
    the agent after its history was replaced by a summary, which forgets the sub-agent's choice."""
    chance = random.Random(0)
    prompts = [(1, 2), *((1, 3, 8 + first) for first in range(2)), *((1, 4, 5 + first) for first in range(2))]
    logits = torch.randn(len(prompts), 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits.requires_grad_()
    values = {choices: chance.randint(-8, 8) / 4 for choices in itertools.product(range(2), repeat=3)}

    def contexts(choices: Sequence[int]) -> tuple[int, int, int]:
        return 0, 1 + choices[0], 3 + choices[0]

    def probability(choices: Sequence[int]) -> torch.Tensor:
        logprobs = logits.log_softmax(1)
        return (
            torch.stack([logprobs[c, choice] for c, choice in zip(contexts(choices), choices, strict=True)]).sum().exp()
        )

    def episode(index: int, choices: Sequence[int]) -> Episode:
        found = [decision(n, prompts[c], choices[n]) for n, c in enumerate(contexts(choices))]
        rewards = (RewardEntry(None, "reward:r", values[tuple(choices)]),)
        return Episode(f"g#{index}", Task("t", ()), "default", "g", index, tuple(found), "answer", rewards=rewards)

    algorithm = AlgorithmConfig(baseline="leave_one_out", scale="none", loss_aggregation="sequence_sum")
    expected = torch.zeros_like(logits)
    for pair in itertools.product(values, repeat=2):
        group = Group("g", Task("t", ()), tuple(episode(index, choices) for index, choices in enumerate(pair)))
        credited = credit([group], algorithm)
        samples = [
            it for e, a in zip(credited.episodes, credited.advantages, strict=True) for it in episode_samples(e, a)
        ]
        normaliser = Normaliser.of([3, 3], algorithm.loss_aggregation)
        for batch in pack(samples, 8):
            logprobs_BT = torch.zeros(batch.input_ids_BT.shape, dtype=torch.float64)
            for row, number in enumerate(batch.samples):
                *prompt, said = samples[number].ids
                logprobs_BT[row, len(prompt)] = logits.log_softmax(1)[prompts.index(tuple(prompt)), said - 8]
            loss, _ = policy_loss(
                logprobs_BT, batch.advantages_BT, batch.loss_mask_BT, normaliser, algorithm,
                episode_tokens_B=batch.episode_tokens_B,
            )  # fmt: skip
            if loss.requires_grad:
                weight = torch.stack([probability(choices) for choices in pair]).prod().detach()
                expected += weight * torch.autograd.grad(loss, logits)[0]
    reward = torch.stack([probability(choices) * value for choices, value in values.items()]).sum()
    (analytic,) = torch.autograd.grad(reward, logits)
    assert analytic.abs().min() > 1e-4
    assert torch.allclose(-expected, analytic, rtol=0, atol=1e-12)


def game(index: int, first: float) -> Episode:
    """Two players; what one wins the other loses."""
    players = [replace(decision(n, (1, 2 + n), index), role=role) for n, role in enumerate("ab")]
    shared = RewardEntry(0, "step:move", 0.5)
    rewards = (
        shared,
        *(RewardEntry(None, "reward:won", sign * first, role=role) for sign, role in ((1, "a"), (-1, "b"))),
    )
    return Episode(f"g#{index}", Task("t", ()), "default", "g", index, tuple(players), "answer", rewards=rewards)


@pytest.mark.parametrize("of", ["episode", "turn"])
def test_players_get_opposite_advantages(of: Any) -> None:
    group = Group("g", Task("t", ()), (game(0, 1.0), game(1, -1.0), game(2, -1.0)))
    found = credit([group], AlgorithmConfig(credit=of, baseline="group_mean", scale="std")).advantages
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
