"""The whole update written the obvious way, from the papers' formulas: one sequence at a time, its full logits, in
float64, with the averages taken over plain lists. It shares nothing with what it is compared to but the config and the
model."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from toolrl.types import Episode, Group, Trajectory

EPSILON = 1e-4
Advantage = Mapping[int, float]
"""Of each turn of an episode, by its index."""


# Advantages.


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / max(len(values), 1)


def deviation(values: Sequence[float]) -> float:
    """Of a sample."""
    middle = mean(values)
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)) if values[1:] else 0.0


def compared(values: Sequence[float], groups: Sequence[Any], baseline: str, scale: str) -> list[float]:
    """Each value against those of its group, or of all; 0 where these are equal."""
    of = {group: [v for v, other in zip(values, groups, strict=True) if other == group] for group in groups}
    found = []
    for value, group in zip(values, groups, strict=True):
        own = list(values) if baseline == "batch_mean" else of[group]
        others = list(own)
        if baseline == "leave_one_out" and len(own) > 1:
            others.remove(value)
        found.append(None if max(own) - min(own) < 1e-9 else value - mean(others))
    plain = [value or 0.0 for value in found]
    shift, spreads = 0.0, [1.0] * len(plain)
    if scale == "std":
        spreads = [deviation(of[group]) + EPSILON for group in groups]
    elif scale == "batch_std":
        spreads = [deviation(values) + EPSILON] * len(plain)
    elif scale == "advantage_std":
        shift, spreads = mean(plain), [deviation(plain) + EPSILON] * len(plain)
    return [0.0 if value is None else (value - shift) / by for value, by in zip(found, spreads, strict=True)]


def sampled(episode: Episode) -> int:
    return sum(sum(it.loss_mask) for it in episode.trajectories if it.trained)


def given(episode: Episode, algorithm: Any) -> tuple[float, dict[int, float]]:
    """What an episode was given as a whole, and for its turns."""
    of_turns = [entry for entry in episode.rewards if entry.turn is not None and entry.source != "call_cost"]
    whole = math.fsum(entry.weight * entry.value for entry in episode.rewards if entry not in of_turns)
    if algorithm.overlong is not None:
        how = algorithm.overlong
        over = (sampled(episode) - how.tokens + how.buffer) / how.buffer
        whole -= how.penalty * min(max(over, 0.0), 1.0)
    turns: dict[int, float] = {}
    for entry in of_turns:
        assert entry.turn is not None
        turns[entry.turn] = turns.get(entry.turn, 0.0) + entry.weight * entry.value
    return whole, turns


def by_group(groups: Sequence[Group], algorithm: Any) -> list[tuple[Episode, Advantage]]:
    """The episodes that ended, with the advantages of their turns."""
    rows = [(episode, group.id, *given(episode, algorithm)) for group in groups for episode in group.scored]
    how = (algorithm.baseline, algorithm.scale)
    names = [name for _, name, _, _ in rows]
    if algorithm.credit == "episode":
        values = compared([whole + math.fsum(turns.values()) for _, _, whole, turns in rows], names, *how)
        return alike([row[0] for row in rows], values)
    wholes = compared([whole for _, _, whole, _ in rows], names, *how)
    places = [(row, turn) for row, (_, _, _, turns) in enumerate(rows) for turn in turns]
    steps = compared([rows[row][3][turn] for row, turn in places], [names[row] for row, _ in places], *how)
    of = dict(zip(places, steps, strict=True))
    return [
        (
            episode,
            {
                turn.index: wholes[row]
                + math.fsum(
                    algorithm.discount ** (later.index - turn.index) * of.get((row, later.index), 0.0)
                    for later in episode.turns
                    if later.index >= turn.index
                )
                for turn in episode.turns
            },
        )
        for row, (episode, _, _, _) in enumerate(rows)
    ]


def gdpo(groups: Sequence[Group], options: Any) -> list[tuple[Episode, Advantage]]:
    """arXiv 2601.05242, section 3.1."""
    episodes = [episode for group in groups for episode in group.scored]
    names = [episode.group for episode in episodes]
    total = [0.0] * len(episodes)
    for source, weight in sorted({(entry.source, entry.weight) for it in episodes for entry in it.rewards}):
        values = [
            math.fsum(of.value for of in it.rewards if (of.source, of.weight) == (source, weight)) for it in episodes
        ]
        own = compared(values, names, "group_mean", "std")
        total = [so_far + weight * value for so_far, value in zip(total, own, strict=True)]
    return alike(episodes, compared(total, names, "batch_mean", "batch_std"))


def maxrl(groups: Sequence[Group], options: Any) -> list[tuple[Episode, Advantage]]:
    """arXiv 2602.02710, algorithm 1."""
    found = []
    for group in groups:
        rewards = [math.fsum(entry.weight * entry.value for entry in it.rewards) for it in group.scored]
        middle = mean(rewards)
        found += alike(group.scored, [(reward - middle) / middle if middle else 0.0 for reward in rewards])
    return found


def gigpo(groups: Sequence[Group], options: Any) -> list[tuple[Episode, Advantage]]:
    """arXiv 2505.10978, equations 3 and 5 to 8."""
    found = []
    for group in groups:
        rewards = [math.fsum(entry.weight * entry.value for entry in it.rewards) for it in group.scored]
        of_episodes = compared(rewards, [0] * len(rewards), "group_mean", options.scale)
        steps = [(row, *step) for row, it in enumerate(group.scored) for step in anchored(it, options)]
        compared_steps = compared(
            [value for _, _, _, value in steps], [state for _, _, state, _ in steps], "group_mean", options.scale
        )
        of_turns = {(row, turn): value for (row, turn, _, _), value in zip(steps, compared_steps, strict=True)}
        for row, episode in enumerate(group.scored):
            turns = [turn for other, turn in of_turns if other == row]
            mixed = {turn: of_episodes[row] + options.step_weight * of_turns[row, turn] for turn in turns}
            found.append((episode, mixed))
    return found


def anchored(episode: Episode, options: Any) -> Iterator[tuple[int, tuple[int, ...], float]]:
    """Index, state and return of each turn."""
    last = episode.turns[-1].index
    earned = [(last if entry.turn is None else entry.turn, entry.weight * entry.value) for entry in episode.rewards]
    for it in episode.trajectories:
        read = 0
        for turn in it.turns if it.trained else ():
            start, end = turn.segments[0].tokens[0], turn.segments[-1].tokens[1]
            value = math.fsum(options.discount ** (when - turn.index) * of for when, of in earned if when >= turn.index)
            yield turn.index, tuple(it.ids[read:start]), value
            read = 0 if options.anchor == "conversation" else end


def alike(episodes: Sequence[Episode], values: Sequence[float]) -> list[tuple[Episode, Advantage]]:
    """The same for all turns of an episode."""
    return [(it, {t.index: value for t in it.turns}) for it, value in zip(episodes, values, strict=True)]


ESTIMATORS = {"gdpo": gdpo, "maxrl": maxrl, "gigpo": gigpo}


def flat(group: Group, algorithm: Any) -> bool:
    """Whether `drop_flat_groups` leaves a group out."""
    correct = {episode.correct for episode in group.scored}
    if algorithm.filter_metric == "correct" and None not in correct and len(correct) < 2:
        return True
    plain = algorithm.model_copy(update={"overlong": None})
    rewards = [given(episode, plain) for episode in group.scored]
    if algorithm.credit == "episode":
        lists = [[whole + math.fsum(turns.values()) for whole, turns in rewards]]
    else:
        lists = [[whole for whole, _ in rewards], [value for _, turns in rewards for value in turns.values()]]
    return all(max(values, default=0.0) - min(values, default=0.0) < 1e-9 for values in lists)


def kept(groups: Sequence[Group], credited: Sequence[tuple[Episode, Advantage]], algorithm: Any) -> list[Any]:
    """Without what the config leaves out."""
    dropped = {group.id for group in groups if algorithm.drop_flat_groups and flat(group, algorithm)}
    cut = ("max_tokens", "context_full", "timeout") if algorithm.mask_truncated else ()
    return [item for item in credited if item[0].group not in dropped and item[0].stop_reason not in cut]


# Sequences.


@dataclass
class Row:
    """A trained sequence of an episode; tensors of its sampled tokens."""

    ids: Sequence[int]
    places: Sequence[int]
    behaviour: torch.Tensor
    advantages: torch.Tensor
    teacher: torch.Tensor | None = None
    old: torch.Tensor | None = None
    reference: torch.Tensor | None = None


def rows_of(episode: Episode, advantage: Advantage) -> list[Row]:
    return [row_of(it, advantage) for it in episode.trajectories if it.trained and sum(it.loss_mask)]


def row_of(trajectory: Trajectory, advantage: Advantage) -> Row:
    places = [place for place, bit in enumerate(trajectory.loss_mask) if bit]
    turn_of = {p: t.index for t in trajectory.turns for segment in t.segments for p in range(*segment.tokens)}
    behaviour = torch.tensor([trajectory.logprobs[place] for place in places], dtype=torch.float64)
    credited = torch.tensor([advantage[turn_of[place]] for place in places], dtype=torch.float64)
    teacher = None
    if trajectory.teacher_logprobs is not None:
        teacher = torch.tensor([trajectory.teacher_logprobs[place] for place in places], dtype=torch.float64)
    return Row(trajectory.ids, places, behaviour, credited, teacher)


def taught(row: Row, how: Any) -> None:
    """Put the teacher's part into the advantages."""
    row.advantages = how.reward_weight * row.advantages
    if row.teacher is not None and how.kl_as == "advantage":
        row.advantages = row.advantages + how.coef * (row.teacher - row.behaviour)


def scored(model: Any, row: Row, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy of each sampled token, from the logits of all positions."""
    logits = model(input_ids=torch.tensor([row.ids])).logits[0].double() / temperature
    before = logits.log_softmax(-1)[[place - 1 for place in row.places]]
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
    if algorithm.kl_coef:
        losses = losses + algorithm.kl_coef * divergence(now, row.reference, row, algorithm)
    how = algorithm.distillation
    if how is not None and how.kl_as == "loss" and row.teacher is not None:
        losses = losses + how.coef * divergence(now, row.teacher, row, algorithm)
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
    return torch.where(risen | fallen, 0.0, -(p / q).clamp(max=options.ratio_cap) * row.advantages * now)


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
    """A trainer. `together`: whether the episodes of a group stay in one mini-batch; `estimator`: name and options of one
    of `ESTIMATORS`; `dppo`: options of the policy loss."""

    def __init__(
        self, model: Any, settings: Any, algorithm: Any, *, temperature: float, longest: int, together: bool,
        estimator: tuple[str, Any] | None = None, dppo: Any = None,
    ) -> None:  # fmt: skip
        self.model, self.settings, self.algorithm = model, settings, algorithm
        self.estimator, self.dppo = estimator, dppo
        self.start, self.steps = copy.deepcopy(model), 0
        self.temperature, self.longest, self.together = temperature, longest, together
        self.trained = [it for it in model.parameters() if it.requires_grad]
        self.adamw = self._adamw(self.trained, settings.learning_rate)
        self.gradients: list[torch.Tensor] = []
        """Of each update, all in a row."""

    def update(self, groups: Sequence[Group]) -> float:
        """The updates of one step; the sum of their losses."""
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
        self._move_reference()
        return total

    def _credited(self, groups: Sequence[Group]) -> list[tuple[Episode, Advantage]]:
        if self.estimator is not None:
            name, options = self.estimator
            return ESTIMATORS[name](groups, options)
        return by_group(groups, self.algorithm)

    def _move_reference(self) -> None:
        self.steps += 1
        how = self.algorithm.reference
        if how is None or not how.sync_every or self.steps % how.sync_every:
            return
        with torch.no_grad():
            for reference, policy in zip(self.start.parameters(), self.model.parameters(), strict=True):
                reference.copy_((1 - how.mixup) * reference + how.mixup * policy)

    def _remember(self, rows: Iterator[Row]) -> None:
        """The log-probabilities before the step, and under the reference."""
        with torch.no_grad():
            for row in rows:
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
        if self.algorithm.kl_coef or self.algorithm.entropy_coef or self.dppo is not None:
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

    def _adamw(self, parameters: Sequence[Any], rate: float) -> torch.optim.AdamW:
        betas, eps = self.settings.betas, self.settings.eps
        return torch.optim.AdamW(parameters, lr=rate, betas=betas, eps=eps, weight_decay=0.0)
