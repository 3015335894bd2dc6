"""A step with everything in it, against one made by hand: rewards of episodes and turns, stale samples weighed and left
out, the clip of both ratios, KL and entropy, several updates in micro-batches, beginnings shared or not."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.types import Episode, Group, RewardEntry, Task
from toolrl_plugin_torch.sampling_masks import decode, encode

UPDATES, TEMPERATURE, LENGTH, PROMPT, RATE = 2, 1.3, 37, 40, 1e-3
DISCOUNT, CAP, LOW, HIGH, DUAL, KL, ENTROPY = 0.9, 1.5, 0.7, 1.4, 3.0, 0.2, 0.05
CLIPS = {"token": (2e-3, 3e-3), "sequence": (3e-4, 4e-4)}


def scored(model: Any, episode: Episode) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability and entropy of each sampled token, over the ids that were kept."""
    logits = model(input_ids=torch.tensor([episode.ids])).logits[0].double() / TEMPERATURE
    places = [place for place, bit in enumerate(episode.loss_mask) if bit]
    labels = [episode.ids[place] for place in places]
    before = logits[[place - 1 for place in places]]
    if (masks := episode.main.sampling_masks) is not None:
        kept = decode(masks, labels)
        every, parts = torch.ones(before.shape[1], dtype=torch.bool), kept.ids_M.long().split(kept.counts_N.tolist())
        before = before.masked_fill(torch.stack([every.index_fill(0, ids, False) for ids in parts]), -torch.inf)
    before = before.log_softmax(-1)
    return before.gather(1, torch.tensor(labels)[:, None])[:, 0], torch.distributions.Categorical(
        logits=before
    ).entropy()


def sampled(model: Any, vocabulary: int, make_episode: Callable[..., Episode], masked: bool) -> list[Group]:
    """Four groups of episodes with one to four turns; one episode failed, and the outcomes of one group are equal. The
    log-probabilities as sampled lie around the model's."""
    chance, others = random.Random(3), random.Random(3)

    def words(count: int) -> list[int]:
        return [chance.randrange(3, vocabulary) for _ in range(count)]

    groups = []
    for number, size in enumerate((3, 4, 2, 3)):
        prompt, episodes = words(PROMPT), []
        for index in range(size):
            ids, mask, turns = list(prompt), [0] * PROMPT, chance.randint(1, 4)
            for turn in range(turns):
                count, answer = chance.randint(1, 9), 3 if turn < turns - 1 else 0
                ids += words(count + answer)
                mask += [1] * count + [0] * answer
            outcome = 1.0 if number == 2 else float(chance.random() < 0.5)
            steps = [RewardEntry(turn, "step:tool", chance.choice([0.0, 0.5, 1.0])) for turn in range(turns - 1)]
            fields = {
                "ids": tuple(ids), "index": index, "group": str(number), "failed": (number, index) == (1, 2),
                "rewards": (RewardEntry(None, "reward:exact", outcome), *steps),
            }  # fmt: skip
            if masked:
                tokens = [token for token, bit in zip(ids, mask, strict=True) if bit]
                drawn = [others.sample(range(vocabulary), others.randrange(10, vocabulary)) for _ in tokens]
                kept = [sorted({*some, token}) for some, token in zip(drawn, tokens, strict=True)]
                fields["sampling_masks"] = encode(kept[:2]) + encode(kept[2:]) if kept[2:] else encode(kept)
            with torch.no_grad():
                ours = scored(model, make_episode(tuple(mask), **fields))[0].tolist()
            told = iter([min(value + chance.gauss(0, 0.6), 0.0) for value in ours])
            logprobs = tuple(next(told) if bit else 0.0 for bit in mask)
            episodes.append(make_episode(tuple(mask), **fields, logprobs=logprobs))
        groups.append(Group(str(number), Task(str(number), ()), tuple(episodes)))
    return groups


def compared(values: Sequence[float]) -> list[float]:
    if len(values) < 2 or max(values) == min(values):
        return [0.0] * len(values)
    mean = sum(values) / len(values)
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return [(value - mean) / (deviation + 1e-4) for value in values]


def credited(group: Group) -> list[tuple[Episode, torch.Tensor]]:
    """The episodes that ended, with the advantage of each sampled token."""
    episodes = [episode for episode in group.episodes if episode.failure is None]
    outcomes = compared([entry.value for episode in episodes for entry in episode.rewards if entry.turn is None])
    steps = iter(compared([entry.value for e in episodes for entry in e.rewards if entry.turn is not None]))
    found = []
    for episode, outcome in zip(episodes, outcomes, strict=True):
        given = [next(steps) for entry in episode.rewards if entry.turn is not None] + [0.0]
        tokens: list[float] = []
        for k, turn in enumerate(episode.turns):
            to_come = sum(DISCOUNT ** (j - k) * given[j] for j in range(k, len(given)))
            tokens += [outcome + to_come] * turn.sampled_tokens
        found.append((episode, torch.tensor(tokens, dtype=torch.float64)))
    return found


def dealt(units: Sequence[Sequence[int]], costs: Sequence[int], *, even: bool) -> list[list[int]]:
    parts: list[list[int]] = [[] for _ in range(UPDATES)]
    for unit in sorted(range(len(units)), key=lambda unit: -costs[unit]):
        min(parts, key=lambda part: (even and len(part), sum(costs[it] for it in part), parts.index(part))).append(unit)
    return [[sample for unit in sorted(part) for sample in units[unit]] for part in parts]


def token_losses(
    now: torch.Tensor, old: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, kind: str
) -> torch.Tensor:
    low, high = CLIPS[kind]
    ratio = (now - old).exp()
    if kind == "sequence":
        ratio = (now - old).mean().exp().detach() * (now - now.detach()).exp()
    gain = torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    gain = torch.where(advantages < 0, torch.maximum(gain, DUAL * advantages), gain)
    kept = LOW <= float((old - behaviour).mean().exp()) <= HIGH
    return -(old - behaviour).exp().clamp(max=CAP) * gain * kept


def averaged(terms: Sequence[torch.Tensor], how: str) -> torch.Tensor:
    """Of the losses of each episode's tokens."""
    if how == "token_mean":
        return torch.cat(list(terms)).mean()
    lengths = [len(term) if how == "sequence_mean" else LENGTH for term in terms]
    return torch.stack([term.sum() / length for term, length in zip(terms, lengths, strict=True)]).mean()


def by_hand(model: Any, groups: Sequence[Group], kind: str, loss: str, epochs: int, *, together: bool) -> float:
    """Updates the model; the sum of the updates' losses."""
    items = [item for group in groups for item in credited(group)]
    members: dict[str, list[int]] = {}
    for position, (episode, _) in enumerate(items):
        members.setdefault(episode.group if together else str(position), []).append(position)
    units = list(members.values())
    costs = [sum(items[position][0].sampled_tokens for position in unit) for unit in units]
    with torch.no_grad():
        olds = [scored(model, episode)[0] for episode, _ in items]
    adamw = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    total = 0.0
    for part in dealt(units, costs, even=loss != "token_mean") * epochs:
        terms = []
        for position in part:
            (episode, advantages), old = items[position], olds[position]
            now, entropy = scored(model, episode)
            behaviour = torch.tensor([it for it, bit in zip(episode.logprobs, episode.loss_mask, strict=True) if bit])
            away = old - now  # The reference is the model as it was.
            divergence = (now - behaviour.double()).exp() * (away.exp() - away - 1)
            terms.append(
                token_losses(now, old, behaviour.double(), advantages, kind) + KL * divergence - ENTROPY * entropy
            )
        loss_of_all = averaged(terms, loss)
        adamw.zero_grad()
        loss_of_all.backward()
        adamw.step()
        total += float(loss_of_all.detach())
    return total


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("kind", "loss", "epochs", "masked"),
    [
        ("token", "token_mean", 3, False),
        ("sequence", "sequence_mean", 2, False),
        ("token", "constant", 1, False),
        ("token", "token_mean", 2, True),
        ("sequence", "sequence_mean", 1, True),
    ],
)
def test_a_step_is_the_one_made_by_hand(
    kind: Any, loss: Any, epochs: int, masked: bool, share: bool, tiny: Any, make_episode: Any, tmp_path: Path
) -> None:
    model = tiny.model("qwen3", dtype="float64")
    copied = copy.deepcopy(model)
    groups = sampled(copied, tiny.vocabulary, make_episode, masked)
    algorithm = {
        "preset": "grpo", "credit": "turn", "discount": DISCOUNT, "ratio": kind, "loss_aggregation": loss,
        "clip_low": CLIPS[kind][0], "clip_high": CLIPS[kind][1], "clip_dual": DUAL, "kl_coef": KL,
        "entropy_coef": ENTROPY, "importance": {"level": "token", "cap": CAP},
        "rejection": {"level": "mean", "low": LOW, "high": HIGH},
    }  # fmt: skip
    trainer = tiny.trainer(
        tmp_path, tiny.policy(model), algorithm, temperature=TEMPERATURE, longest=LENGTH, learning_rate=RATE,
        updates_per_step=UPDATES, epochs_per_step=epochs, tokens_per_microbatch=150, max_grad_norm=1e9,
        share_prefix=share,
    )  # fmt: skip
    metrics = trainer.update(groups)
    expected = by_hand(copied, groups, kind, loss, epochs, together=share)
    assert trainer.shares == share
    assert 0 < metrics["importance/rejected"] < 1
    assert metrics["clip_fraction"] > 0
    assert metrics["updates"] == UPDATES * epochs
    assert metrics["loss"] == pytest.approx(expected, abs=1e-6)
    for ours, theirs in zip(model.parameters(), copied.parameters(), strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=RATE / 50)
