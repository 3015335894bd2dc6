"""Contracts of advantage estimators and policy losses: finite numbers of the right shape, for whatever a step holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from toolrl.protocols import AdvantageEstimator, LossTerms, PolicyLoss
from toolrl.types import EpisodeFailure, Group, RewardEntry
from toolrl_testing.checks import fail, require
from toolrl_testing.fakes import make_episode, make_task


def sample_groups() -> list[Group]:
    """Groups as they come: with spread, with rewards of turns, flat, of one episode, with failures, all failed."""
    return [
        _group("spread", [1.0, 0.0, 0.5, 0.0]),
        _group("turns", [1.0, 0.0], steps=[{0: 0.5, 1: -0.5}, {}]),
        _group("flat", [1.0, 1.0]),
        _group("one", [1.0]),
        _group("failure", [1.0, None, 0.0]),
        _group("all failed", [None, None]),
    ]


def _group(name: str, rewards: Sequence[float | None], steps: Sequence[Mapping[int, float]] | None = None) -> Group:
    task = make_task()
    episodes = []
    for index, reward in enumerate(rewards):
        entries = [RewardEntry(None, "reward:sample", reward or 0.0)]
        given = steps[index] if steps else {}
        entries += [RewardEntry(turn, "step:sample", value) for turn, value in given.items()]
        failure = EpisodeFailure("tool", "sample", "it died") if reward is None else None
        episodes.append(
            make_episode("one turn", "and another", task=task, rewards=tuple(entries), failure=failure, index=index)
        )
    return Group(name, task, tuple(episodes))


def check_advantages(estimator: AdvantageEstimator, groups: Sequence[Group]) -> None:
    """One finite number, or one for each turn, for each episode that didn't fail; nothing for no groups."""
    require(len(list(estimator.advantages([]))) == 0, "advantages([]) gave something for no group")
    rows = [list(given) for given in estimator.advantages(groups)]
    require(len(rows) == len(groups), f"advantages() gave {len(rows)} entries for {len(groups)} groups")
    for group, given in zip(groups, rows, strict=True):
        where = f"for the group {group.id!r}"
        require(len(given) == len(group.episodes), f"{len(given)} advantages of {len(group.episodes)} episodes {where}")
        for episode, value in zip(group.episodes, given, strict=True):
            if episode.failure is None:
                _check_one(value, [turn.index for turn in episode.turns], where)


def _check_one(value: Any, turns: Sequence[int], where: str) -> None:
    numbers = value if isinstance(value, Mapping) else {None: value}
    if isinstance(value, Mapping):
        lacking = [turn for turn in turns if turn not in value]
        require(not lacking, f"no advantage for turn {lacking[:1]} {where}")
    for number in numbers.values():
        finite = isinstance(number, int | float) and math.isfinite(number)
        require(finite, f"an advantage is {number!r:.40}, expected a finite number {where}")


def check_policy_loss(loss: PolicyLoss) -> None:
    """A finite loss for each token, whose gradient reaches the log-probabilities and nothing else; the terms stay as
    they are."""
    torch = pytest.importorskip("torch", reason="a policy loss needs torch")
    generator = torch.Generator().manual_seed(0)
    mask_BT = torch.tensor([[False, True, True, False], [False, False, True, True]])
    values = [-torch.rand(2, 4, generator=generator) * 3 * mask_BT for _ in range(3)]
    advantages_BT = torch.randn(2, 4, generator=generator) * mask_BT
    for label, old_BT in (("off-policy", values[1]), ("on-policy", values[0].clone())):
        logprobs_BT = values[0].clone().requires_grad_()
        terms = LossTerms(logprobs_BT, old_BT, values[2], advantages_BT, mask_BT)
        before = [part.detach().clone() for part in (logprobs_BT, old_BT, values[2], advantages_BT, mask_BT)]
        losses_BT = loss.token_losses(terms)
        if not isinstance(losses_BT, torch.Tensor) or losses_BT.shape != mask_BT.shape:
            fail(f"token_losses() gave {type(losses_BT).__name__} {getattr(losses_BT, 'shape', '')}, expected [2, 4]")
        require(bool(losses_BT[mask_BT].isfinite().all()), f"a token's loss is not finite ({label})")
        losses_BT[mask_BT].sum().backward()
        gradient_BT = logprobs_BT.grad
        if gradient_BT is None:
            fail(f"no gradient reaches logprobs_BT ({label})")
        require(bool(gradient_BT[mask_BT].isfinite().all()), f"a token's gradient is not finite ({label})")
        require(bool(gradient_BT[mask_BT].any()), f"all gradients are 0 ({label})")
        after = (logprobs_BT, old_BT, values[2], advantages_BT, mask_BT)
        same = all(part.detach().equal(copy) for part, copy in zip(after, before, strict=True))
        require(same, f"token_losses() changed its terms ({label})")
