"""Each objective against its paper's formula in float64, written out with numpy, and GDPO against TRL's own code."""

from __future__ import annotations

import inspect
import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from toolrl.errors import RewardError
from toolrl.protocols import LossTerms
from toolrl.types import Episode, EpisodeFailure, Group, MediaInput, RewardEntry, Segment, Task, Trajectory, Turn
from toolrl_plugin_objectives.dppo import DPPO
from toolrl_plugin_objectives.gdpo import GDPO
from toolrl_plugin_objectives.gigpo import GiGPO
from toolrl_plugin_objectives.maxrl import MaxRL
from toolrl_plugin_objectives.options import DPPOOptions, GiGPOOptions
from toolrl_testing import make_build_context

CONTEXT: Any = make_build_context()
CLOSE = {"rtol": 0, "atol": 1e-6}
EXAMPLES = settings(max_examples=60, deadline=None)


class Step(NamedTuple):
    """A turn: what the model read before it, what it sampled, and its reward."""

    read: tuple[int, ...]
    sampled: tuple[int, ...]
    reward: float


class Play(NamedTuple):
    """An episode: what it was given for the answer and for its form, its turns, and whether it failed."""

    answer: float
    form: float
    steps: tuple[Step, ...] = (Step((1, 2), (3,), 0.0),)
    failed: bool = False


def trajectory(steps: Sequence[Step], first: int = 0, **fields: Any) -> Trajectory:
    ids: list[int] = []
    mask: list[int] = []
    turns = []
    for index, step in enumerate(steps, first):
        ids += step.read + step.sampled
        mask += [0] * len(step.read) + [1] * len(step.sampled)
        turns.append(Turn(index, (Segment("model", "", (len(ids) - len(step.sampled), len(ids))),), (), (), "stop"))
    known: dict[str, Any] = {"logprobs": (-0.5,) * len(ids), "weight_versions": (0,) * len(ids), "turns": tuple(turns)}
    return Trajectory(tuple(ids), tuple(mask), **known, **fields)


def episode(play: Play, index: int, *trajectories: Trajectory) -> Episode:
    entries = [RewardEntry(None, "reward:answer", play.answer), RewardEntry(None, "reward:form", play.form, 0.5)]
    entries += [RewardEntry(turn, "step:box", step.reward) for turn, step in enumerate(play.steps) if step.reward]
    return Episode(
        f"g#{index}", Task("t", ()), "default", "g", index, trajectories or (trajectory(play.steps),), "answer",
        rewards=tuple(entries), failure=EpisodeFailure("tool", "box", "it died") if play.failed else None,
    )  # fmt: skip


def as_groups(plays: Sequence[Sequence[Play]]) -> list[Group]:
    return [Group("g", Task("t", ()), tuple(episode(it, n) for n, it in enumerate(of))) for of in plays]


def scored(plays: Sequence[Sequence[Play]], advantages: Any) -> list[Any]:
    """Those of the episodes that didn't fail."""
    return [
        it for of, its in zip(plays, advantages, strict=True) for p, it in zip(of, its, strict=True) if not p.failed
    ]


def test_gdpo_is_trls() -> None:
    trainer = pytest.importorskip(
        "trl.trainer.grpo_trainer", reason="the comparison needs TRL: pip install 'trl>=1.16'"
    )
    source = inspect.getsource(trainer.GRPOTrainer._generate_and_score_completions)
    _, found, rest = source.partition('elif self.multi_objective_aggregation == "normalize_then_sum":\n')
    assert found, "TRL's code has moved"
    chance = np.random.default_rng(0)
    rewards_BK = chance.choice([0.0, 0.5, 1.0], size=(24, 2))
    names: dict[str, Any] = {
        "torch": torch, "nanstd": trainer.nanstd, "num_generations": 4, "device": "cpu",
        "rewards_per_func": torch.tensor(rewards_BK), "unscorable_mask": torch.zeros(24, dtype=torch.bool),
    }  # fmt: skip

    class Self:
        reward_funcs, reward_weights = (None, None), torch.tensor([1.0, 0.5], dtype=torch.float64)

    exec(textwrap.dedent(rest.partition("\n        else:\n")[0]), names | {"self": Self}, names)
    plays = [[Play(*row) for row in rewards_BK[start : start + 4]] for start in range(0, 24, 4)]
    ours = scored(plays, GDPO(None, CONTEXT).advantages(as_groups(plays)))
    np.testing.assert_allclose(ours, names["advantages"].numpy(), **CLOSE)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_maxrl_has_the_expected_gradient_of_log_p(p: float) -> None:
    """Of log p = −Σ (1 − p)^k / k up to the group's size less one, for one task with the success rate p."""
    size, expected = 6, 0.0
    for wins in range(size + 1):
        (given,) = MaxRL(None, CONTEXT).advantages(as_groups([[Play(float(n < wins), 0.0) for n in range(size)]]))
        scores = [1 / p if n < wins else -1 / (1 - p) for n in range(size)]  # d log(probability of the outcome) / dp
        chance = math.comb(size, wins) * p**wins * (1 - p) ** (size - wins)
        expected += chance * sum(a * score for a, score in zip(given, scores, strict=True)) / size
    assert expected == pytest.approx(sum((1 - p) ** (k - 1) for k in range(1, size)), abs=1e-9)


def test_maxrl_refuses_penalties() -> None:
    with pytest.raises(RewardError, match=r"maxrl: the reward of g#1 is -0\.5; rewards must be 0 or more"):
        MaxRL(None, CONTEXT).advantages(as_groups([[Play(1.0, 0.0), Play(0.0, -1.0)]]))


def test_gigpo_reads_answers_inside_of_turns() -> None:
    """As parsers that answer with text leave them: behind the turn that called."""

    def answered(*ids: int) -> Trajectory:
        first, second = Turn(0, (), (), (), "stop"), Turn(1, (), (), (), "stop")
        end = 2 + len(ids)
        first = replace(first, segments=(Segment("model", "", (1, 2)), Segment("tool", "", (2, end))))
        second = replace(second, segments=(Segment("model", "", (end, end + 1)),))
        known: dict[str, Any] = {"logprobs": (0.0,) * (end + 1), "weight_versions": (0,) * (end + 1)}
        return Trajectory((1, 3, *ids, 3), (0, 1, *(0 for _ in ids), 1), **known, turns=(first, second))

    def second_turns(*answers: tuple[int, ...]) -> list[float]:
        plays = [Play(1.0, 0.0), Play(0.0, 0.0)]
        group = Group("g", Task("t", ()), tuple(map(episode, plays, range(2), (answered(*it) for it in answers))))
        return [of[1] for of in GiGPO(GiGPOOptions(scale="none"), CONTEXT).advantages([group])[0]]

    assert second_turns((4, 5), (4, 5)) == [1.0, -1.0]
    assert second_turns((4, 5), (9, 9, 9)) == [0.5, -0.5]


def test_gigpo_tells_states_apart_by_their_images() -> None:
    step, options = Step((1, 2), (3,), 0.0), GiGPOOptions(scale="none", discount=1.0)

    def groups(*keys: str) -> list[Group]:
        seen = [trajectory([step], media=(MediaInput("image", (0, 1), key, {}),)) for key in keys]
        plays = [Play(1.0, 0.0, (step,)), Play(0.0, 0.0, (step,))]
        return [Group("g", Task("t", ()), tuple(map(episode, plays, range(2), seen)))]

    assert GiGPO(options, CONTEXT).advantages(groups("a", "a")) == [[{0: 1.0}, {0: -1.0}]]
    assert GiGPO(options, CONTEXT).advantages(groups("a", "b")) == [[{0: 0.5}, {0: -0.5}]]


@pytest.mark.parametrize("estimator", [GDPO, MaxRL, GiGPO], ids=lambda it: it.__name__)
def test_roles_are_compared_with_themselves(estimator: Any) -> None:
    """What only the asker is rewarded for moves none of the agent's turns, and what isn't trained has no advantage."""
    step = Step((1, 2), (3,), 0.0)
    episodes = []
    for index, reward in enumerate([1.0, 0.0, 0.0]):
        parts = [trajectory([step], turn, role=role) for turn, role in enumerate(("agent", "asker"))]
        frozen = trajectory([step], 2, role="agent", trained=False)
        played = episode(Play(0.5, 0.0, (step,)), index, *parts, frozen)
        entry = RewardEntry(None, "reward:question", reward, role="asker")
        episodes.append(replace(played, rewards=(*played.rewards, entry)))
    cut = episode(Play(0.5, 0.0, (step,), failed=True), 3, trajectory([step], role="agent"))
    episodes.append(cut)
    (given,) = estimator(GiGPOOptions(), CONTEXT).advantages([Group("g", Task("t", ()), tuple(episodes))])
    assert given.pop() in ({}, 0.0), "it failed"
    assert [of[0] for of in given] == [0.0, 0.0, 0.0]
    assert given[0][1] > 0 > given[1][1] == given[2][1]
    assert all(set(of) == {0, 1} for of in given)


LOGPROBS = st.floats(-6.0, -1e-4)


@EXAMPLES
@given(
    st.lists(st.tuples(LOGPROBS, LOGPROBS, st.sampled_from([-2.0, -0.5, 0.0, 1.0, 3.0])), min_size=1, max_size=20),
    st.sampled_from([("tv", 0.15, 0.15), ("kl", 0.05, 0.05), ("tv", 0.3, 0.01), ("kl", 0.01, 0.2)]),
    st.sampled_from([20.0, 1.5]),
)
def test_dppo_is_its_formula(tokens: Any, limits: Any, cap: float) -> None:
    divergence, low, high = limits
    expected, clipped = [], []
    for now, sampled, advantage in tokens:
        p, q = math.exp(now), math.exp(sampled)
        kl = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
        distance = abs(p - q) if divergence == "tv" else kl
        out = (advantage > 0 and p > q and distance > high, advantage < 0 and p < q and distance > low)
        clipped.append(out)
        expected.append(0.0 if any(out) else -advantage * min(p / q, cap))
    now_BT, sampled_BT, advantages_BT = (
        torch.tensor([part], dtype=torch.float64) for part in zip(*tokens, strict=True)
    )
    now_BT.requires_grad_()
    nothing_BT = torch.full_like(sampled_BT, torch.nan)  # The old log-probabilities, which aren't used.
    terms = LossTerms(now_BT, nothing_BT, sampled_BT, advantages_BT, torch.ones_like(sampled_BT, dtype=torch.bool))
    default = limits[1:] == {"tv": (0.15, 0.15), "kl": (0.05, 0.05)}[divergence]
    given = {} if default else {"clip_low": low, "clip_high": high}
    loss = DPPO(DPPOOptions(divergence=divergence, ratio_cap=cap, **given), CONTEXT)
    losses_BT = loss.token_losses(terms)
    low_BT, high_BT = loss.clipped_tokens(terms)
    assert list(zip(high_BT[0].tolist(), low_BT[0].tolist(), strict=True)) == clipped
    np.testing.assert_allclose(losses_BT[0].detach(), expected, **CLOSE)
    (gradient_BT,) = torch.autograd.grad(losses_BT.sum(), now_BT)
    np.testing.assert_allclose(gradient_BT[0], expected, **CLOSE, err_msg="of L by log p: L itself, also above the cap")
