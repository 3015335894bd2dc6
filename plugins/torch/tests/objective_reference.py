"""The whole update written the obvious way, from the papers' formulas: one sequence at a time, its full logits, in
float64, with the averages taken over plain lists. It shares nothing with what it is compared to but the config and the
model."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from advantage_reference import EPSILON, ESTIMATORS, Advantage, by_group, deviation, generalised, given, kept, mean

from toolrl.types import Episode, Group, RewardEntry, Trajectory, Turn
from toolrl_plugin_torch.sampling_masks import decode

# Sequences.


@dataclass
class Row:
    """A trained sequence of an episode; tensors of its sampled tokens."""

    ids: Sequence[int]
    places: Sequence[int]
    behaviour: torch.Tensor
    advantages: torch.Tensor
    drawn_from: Sequence[torch.Tensor]
    """The ids that each token was drawn from; empty for all."""
    teacher: torch.Tensor | None = None
    old: torch.Tensor | None = None
    reference: torch.Tensor | None = None


def rows_of(episode: Episode, advantage: Advantage) -> list[Row]:
    return [row_of(it, advantage) for it in episode.trajectories if it.trained and sum(it.loss_mask)]


def row_of(trajectory: Trajectory, advantage: Advantage) -> Row:
    places = [place for place, bit in enumerate(trajectory.loss_mask) if bit]
    behaviour = torch.tensor([trajectory.logprobs[place] for place in places], dtype=torch.float64)
    credited = torch.tensor(
        [value for turn in trajectory.turns for value in of_tokens(advantage[turn.index], turn)], dtype=torch.float64
    )
    drawn_from: Sequence[torch.Tensor] = ()
    if trajectory.sampling_masks:
        masks = decode(trajectory.sampling_masks, [trajectory.ids[place] for place in places])
        drawn_from = masks.ids_M.long().split(masks.counts_N.tolist())
    teacher = None
    if trajectory.teacher_logprobs is not None:
        teacher = torch.tensor([trajectory.teacher_logprobs[place] for place in places], dtype=torch.float64)
    return Row(trajectory.ids, places, behaviour, credited, drawn_from, teacher)


def of_tokens(value: float | Sequence[float], turn: Turn) -> Sequence[float]:
    return [value] * turn.sampled_tokens if isinstance(value, float | int) else value


def taught(row: Row, how: Any) -> None:
    """Put the teacher's part into the advantages."""
    row.advantages = how.reward_weight * row.advantages
    if row.teacher is not None and how.kl_as == "advantage":
        away, most = row.teacher - row.behaviour, how.clip or math.inf
        row.advantages = row.advantages + how.coef * away.clamp(-most, most)


def scored(model: Any, row: Row, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy of each sampled token, over the ids that it was drawn from."""
    logits = model(input_ids=torch.tensor([row.ids])).logits[0].double() / temperature
    before = logits[[place - 1 for place in row.places]]
    if row.drawn_from:
        dropped = torch.ones(before.shape, dtype=torch.bool)
        for number, ids in enumerate(row.drawn_from):
            dropped[number, ids] = False
        before = before.masked_fill(dropped, -1e9)
    before = before.log_softmax(-1)
    labels = torch.tensor([row.ids[place] for place in row.places])
    return before.gather(1, labels[:, None])[:, 0], -(before.exp() * before).sum(1)


# The loss of a sequence's tokens.


def level(logs: torch.Tensor, which: str) -> torch.Tensor:
    """Of a log-ratio's tokens: their own, their sum or their mean."""
    return logs if which == "token" else (logs.sum() if which == "sequence" else logs.mean()).expand(len(logs))


def token_losses(now: torch.Tensor, entropy: torch.Tensor, row: Row, algorithm: Any, dppo: Any = None) -> torch.Tensor:
    assert row.old is not None
    old = row.behaviour if algorithm.old_logprobs == "sampled" else row.old
    own = surrogate(now, old, row.advantages, algorithm) if dppo is None else trust_region(now, row, dppo)
    losses = own * off_policy(old, row, algorithm)
    if algorithm.kl_coef and algorithm.kl_in == "loss":
        losses = losses + algorithm.kl_coef * divergence(now, row.reference, row, algorithm)
    how = algorithm.distillation
    if how is not None and how.kl_as == "loss" and row.teacher is not None:
        most = how.clip or math.inf
        teacher = now.detach() + (row.teacher - now.detach()).clamp(-most, most)
        losses = losses + how.coef * divergence(now, teacher, row, algorithm)
    return losses - algorithm.entropy_coef * entropy


def surrogate(now: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, algorithm: Any) -> torch.Tensor:
    low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high
    ratio = (now - old).exp()
    if algorithm.ratio == "sequence":  # GSPO-token: the sequence's value, the token's gradient.
        ratio = (now - old).mean().exp().detach() * (now - now.detach()).exp()
    if algorithm.surrogate == "cispo":
        return -ratio.detach().clamp(low, high) * advantages * now
    losses = -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)
    if algorithm.clip_dual is not None:
        losses = torch.where(advantages < 0, losses.minimum(-algorithm.clip_dual * advantages), losses)
    return losses


def trust_region(now: torch.Tensor, row: Row, options: Any) -> torch.Tensor:
    """DPPO, arXiv 2602.04879, section 4."""
    p, q = now.detach().exp(), row.behaviour.exp()
    far = (p - q).abs()
    if options.divergence == "kl":
        far = q * (q / p).log() + (1 - q) * ((1 - q + 1e-8) / (1 - p + 1e-8)).log()
    default = 0.15 if options.divergence == "tv" else 0.05
    low, high = (default if it is None else it for it in (options.clip_low, options.clip_high))
    risen = (row.advantages > 0) & (p > q) & (far > high)
    fallen = (row.advantages < 0) & (p < q) & (far > low)
    ratio = (p / q).clamp(max=options.ratio_cap) * (1 + now - now.detach())
    return torch.where(risen | fallen, 0.0, -ratio * row.advantages)


def off_policy(old: torch.Tensor, row: Row, algorithm: Any) -> torch.Tensor:
    """The weight of each token's surrogate."""
    weights = torch.ones_like(old)
    logs = old - row.behaviour
    if (how := algorithm.importance) is not None:
        ratio = level(logs, how.level).exp()
        weights = ratio.clamp(max=how.cap) if how.mode == "truncate" else torch.where(ratio > how.cap, 0.0, ratio)
    if (how := algorithm.rejection) is not None:
        ratio = level(logs, how.level).exp()
        outside = (ratio < how.low) | (ratio > how.high)
        weights = torch.where(outside & ((row.advantages < 0) | (not how.only_negative)), 0.0, weights)
    return weights


def divergence(now: torch.Tensor, other: Any, row: Row, algorithm: Any) -> torch.Tensor:
    """The KL term of each token; corrected, with the gradient of the divergence, weighted by policy over rollout."""
    away = now - other
    estimate = {"k1": away, "k2": away**2 / 2, "k3": (-away).exp() - 1 + away}[algorithm.kl_estimator]
    if not algorithm.kl_correction:
        return estimate
    weight = (now.detach() - row.behaviour).exp()
    return weight * (estimate.detach() + away.detach() * (now - now.detach()))


def aggregated(losses: Sequence[Sequence[torch.Tensor]], algorithm: Any, longest: int) -> torch.Tensor:
    """The loss of an update. `losses`: of each episode, those of its sequences."""
    episodes = [torch.cat(list(of)) for of in losses]
    if algorithm.loss_aggregation == "token_mean":
        return torch.cat(episodes).mean()
    divisors = {"sequence_mean": [len(it) for it in episodes], "sequence_sum": [1] * len(episodes)}
    lengths = divisors.get(algorithm.loss_aggregation, [longest] * len(episodes))
    return torch.stack([it.sum() / length for it, length in zip(episodes, lengths, strict=True)]).mean()


# The update.


def dealt(costs: Sequence[int], parts: int, *, even: bool) -> list[list[int]]:
    """The dearest first, each to the part that has least so far."""
    found: list[list[int]] = [[] for _ in range(parts)]
    for unit in sorted(range(len(costs)), key=lambda unit: -costs[unit]):
        min(found, key=lambda part: (even and len(part), sum(max(costs[it], 1) for it in part), found.index(part))
            ).append(unit)  # fmt: skip
    return [sorted(part) for part in found]


class Reference:
    """A trainer. `together`: whether the episodes of a group stay in one mini-batch; `estimator`: name and options of
    one of `ESTIMATORS`; `dppo`: options of the policy loss."""

    def __init__(
        self, model: Any, settings: Any, algorithm: Any, *, temperature: float, longest: int, together: bool,
        estimator: tuple[str, Any] | None = None, dppo: Any = None,
    ) -> None:  # fmt: skip
        self.model, self.settings, self.algorithm = model, settings, algorithm
        self.estimator, self.dppo = estimator, dppo
        self.start, self.steps = copy.deepcopy(model), 0
        self.temperature, self.longest, self.together = temperature, longest, together
        self.trained = [it for it in model.parameters() if it.requires_grad]
        self.adamw = adamw(self.trained, settings, settings.learning_rate)
        self.penalties: dict[tuple[str, int], list[float]] = {}
        """What the divergence takes off each token of a turn."""
        self.critic = None if algorithm.critic is None else Critic(model, settings, algorithm)
        self.gradients: list[torch.Tensor] = []
        """Of each update, all in a row."""

    def update(self, groups: Sequence[Group]) -> float:
        """The updates of one step; the sum of their losses."""
        if self.algorithm.kl_in == "reward":
            groups = [replace(group, episodes=tuple(map(self._less_divergence, group.episodes))) for group in groups]
        credited = kept(groups, self._credited(groups), self.algorithm)
        episodes = [rows_of(*item) for item in credited]
        if self.algorithm.distillation is not None:
            for row in (row for rows in episodes for row in rows):
                taught(row, self.algorithm.distillation)
        self._remember(row for rows in episodes for row in rows)
        parts = [part for part in self._parts([it.group for it, _ in credited], episodes) if self._moves(part)]
        total = 0.0
        for part in parts * self.settings.epochs_per_step:
            losses = [[self._losses(row) for row in rows] for rows in part]
            total += self._step(aggregated(losses, self.algorithm, self.longest))
        if self.critic is not None:
            self.critic.update()
        self._move_reference()
        return total

    def _credited(self, groups: Sequence[Group]) -> list[tuple[Episode, Advantage]]:
        if self.estimator is not None:
            name, options = self.estimator
            return ESTIMATORS[name](groups, options)
        if self.critic is not None:
            return self.critic.credited([episode for group in groups for episode in group.scored], self.penalties)
        return by_group(groups, self.algorithm)

    def _less_divergence(self, episode: Episode) -> Episode:
        """With what the divergence from the reference takes off the reward of each turn."""
        entries = []
        for it in episode.trajectories:
            row = row_of(it, {turn.index: 0.0 for turn in it.turns})
            with torch.no_grad():
                away = row.behaviour - scored(self.start, row, self.temperature)[0]
            parts = away.split([turn.sampled_tokens for turn in it.turns])
            for turn, part in zip(it.turns, parts, strict=True):
                self.penalties[episode.id, turn.index] = (-self.algorithm.kl_coef * part).tolist()
                entries.append(RewardEntry(turn.index, "kl", -float(part.sum()), self.algorithm.kl_coef))
        return replace(episode, rewards=(*episode.rewards, *entries))

    def _move_reference(self) -> None:
        self.steps += 1
        how = self.algorithm.reference
        if how is None or not how.sync_every or self.steps % how.sync_every:
            return
        with torch.no_grad():
            for reference, policy in zip(self.start.parameters(), self.model.parameters(), strict=True):
                reference.copy_(policy)

    def _remember(self, rows: Iterator[Row]) -> None:
        """The log-probabilities before the step, and under the reference; advantages as a batch holds them."""
        with torch.no_grad():
            for row in rows:
                row.advantages = row.advantages.float().double()
                row.old = scored(self.model, row, self.temperature)[0]
                row.reference = scored(self.start, row, self.temperature)[0]

    def _parts(self, groups: Sequence[str], episodes: Sequence[list[Row]]) -> list[list[list[Row]]]:
        """The episodes of each mini-batch."""
        members: dict[Any, list[int]] = {}
        for position, group in enumerate(groups):
            members.setdefault(group, []).append(position)
        if not self.together or len(members) < self.settings.updates_per_step:
            members = {position: [position] for position in range(len(episodes))}
        units = list(members.values())
        costs = [sum(len(row.places) for position in unit for row in episodes[position]) for unit in units]
        even = self.algorithm.loss_aggregation != "token_mean"
        dealt_units = dealt(costs, self.settings.updates_per_step, even=even)
        return [[episodes[position] for unit in part for position in units[unit]] for part in dealt_units if part]

    def _moves(self, part: Sequence[Sequence[Row]]) -> bool:
        """Whether a mini-batch has any gradient."""
        in_loss = self.algorithm.kl_coef and self.algorithm.kl_in == "loss"
        if in_loss or self.algorithm.entropy_coef:
            return bool(part)
        how = self.algorithm.distillation
        by_loss = how is not None and how.kl_as == "loss"
        rows = [row for rows in part for row in rows]
        return any(bool(row.advantages.any()) or (by_loss and row.teacher is not None) for row in rows)

    def _losses(self, row: Row) -> torch.Tensor:
        return token_losses(*scored(self.model, row, self.temperature), row, self.algorithm, self.dppo)

    def _step(self, loss: torch.Tensor) -> float:
        self.adamw.zero_grad()
        loss.backward()
        self.gradients.append(torch.cat([it.grad.flatten() for it in self.trained if it.grad is not None]))
        self.adamw.step()
        return float(loss.detach())


def adamw(parameters: Sequence[Any], settings: Any, rate: float) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=rate, betas=settings.betas, eps=settings.eps, weight_decay=0.0)


@dataclass
class Valued:
    """The steps of an episode."""

    episode: Episode
    places: list[int]
    turns: list[int]
    """The turn of each step."""
    values: list[float]
    advantages: list[float]


class Critic:
    """Values of turns or tokens by a second model, for one trajectory an episode."""

    def __init__(self, model: Any, settings: Any, algorithm: Any) -> None:
        self.body, self.settings, self.algorithm = copy.deepcopy(model.base_model), settings, algorithm
        self.head = torch.nn.Linear(model.config.hidden_size, 1).double()
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.trained = [it for it in [*self.body.parameters(), *self.head.parameters()] if it.requires_grad]
        self.adamw = adamw(self.trained, settings, algorithm.critic.learning_rate)
        self.valued: list[Valued] = []

    def credited(self, episodes: Sequence[Episode], penalties: Any) -> list[tuple[Episode, Advantage]]:
        self.valued = [self._valued(episode, penalties) for episode in episodes]
        tokens = [
            (
                value,
                1 if self.algorithm.critic.level == "token" else it.episode.turns[turn].sampled_tokens,
            )
            for it in self.valued
            for turn, value in zip(it.turns, it.advantages, strict=True)
        ]
        every = [value for value, count in tokens for _ in range(count)]
        shift, by = 0.0, 1.0
        if self.algorithm.scale == "advantage_std" and len(every) > 1:
            shift, by = mean(every), deviation(every) + EPSILON
        found: list[tuple[Episode, Advantage]] = []
        for it in self.valued:
            of: dict[int, list[float]] = {}
            for turn, value in zip(it.turns, it.advantages, strict=True):
                of.setdefault(turn, []).append((value - shift) / by)
            whole = self.algorithm.critic.level == "token"
            found.append((it.episode, {turn: values if whole else values[0] for turn, values in of.items()}))
        return found

    def update(self) -> None:
        parts = dealt([len(it.places) for it in self.valued], self.settings.updates_per_step, even=False)
        for part in [part for part in parts if part] * self.settings.epochs_per_step:
            self.adamw.zero_grad()
            torch.cat([self._losses(self.valued[number]) for number in part]).mean().backward()
            self.adamw.step()

    def _valued(self, episode: Episode, penalties: Any) -> Valued:
        how, by_token = self.algorithm.critic, self.algorithm.critic.level == "token"
        places, turns, rewards = [], [], []
        for turn in episode.turns:
            start, end = turn.segments[0].tokens
            steps = list(range(start, end)) if by_token else [start]
            places += steps
            turns += [turn.index] * len(steps)
            lost = penalties.get((episode.id, turn.index), [0.0] * (end - start))
            rewards += lost if by_token else [math.fsum(lost)]
            rewards[-1] += math.fsum(
                it.weight * it.value for it in episode.rewards if it.turn == turn.index and it.source != "kl"
            )
        plain = replace(episode, rewards=tuple(it for it in episode.rewards if it.turn is None))
        rewards[-1] += given(plain, self.algorithm)[0]
        with torch.no_grad():
            values = self._values(episode, places).tolist()
        return Valued(
            episode, places, turns, values, generalised(rewards, values, self.algorithm.discount, how.gae_lambda)
        )

    def _values(self, episode: Episode, places: Sequence[int]) -> torch.Tensor:
        hidden = self.body(input_ids=torch.tensor([episode.ids]))[0][0]
        values: torch.Tensor = self.head(hidden[[place - 1 for place in places]])[:, 0]
        return values

    def _losses(self, it: Valued) -> torch.Tensor:
        values, old = self._values(it.episode, it.places), torch.tensor(it.values, dtype=torch.float64)
        returns = old + torch.tensor(it.advantages, dtype=torch.float64)
        errors = (values - returns) ** 2
        if (clip := self.algorithm.critic.value_clip) is not None:
            errors = errors.maximum((values.clamp(old - clip, old + clip) - returns) ** 2)
        return errors / 2
