"""Whole updates under random configurations against `objective_reference`: each gradient within 1e-6 in float64.

What is combined: advantages, credit, surrogates, importance, rejection, KL, entropy, aggregation, several updates and
steps, micro-batches, shared beginnings, turns spread over trajectories, LoRA, two ranks.
"""

from __future__ import annotations

import pickle
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.loop.ranks import ONE
from toolrl.types import Episode, Group, RewardEntry, Task, Trajectory
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.sampling_masks import encode

pytest.importorskip("toolrl_plugin_objectives")
from toolrl_plugin_objectives.dppo import DPPO
from toolrl_plugin_objectives.gdpo import GDPO
from toolrl_plugin_objectives.gigpo import GiGPO
from toolrl_plugin_objectives.maxrl import MaxRL
from toolrl_plugin_objectives.options import DPPOOptions, GiGPOOptions

WORKER = Path(__file__).parent / "ranks_worker.py"
TOLERANCE = 1e-6
FEW, MANY = 40, 1000


def groups_of(
    chance: random.Random,
    vocabulary: int,
    make_episode: Callable[..., Episode],
    step: int,
    *,
    masks: bool,
    positive: bool,
    several: bool,
) -> list[Group]:
    """Groups of one to four episodes of one to four turns: some that failed, ran out of tokens, or got equal rewards.
    The log-probabilities as sampled are far from the model's in some."""

    def words(count: int) -> list[int]:
        return [chance.randrange(3, vocabulary) for _ in range(count)]

    groups, beginning = [], words(30)
    for number in range(chance.randint(2, 4)):
        name, prompt, episodes = f"{step}-{number}", [*beginning, *words(6)], []
        equal = chance.random() < 0.2
        for index in range(chance.randint(2 if several else 1, 4)):
            ids, mask, turns = list(prompt), [0] * len(prompt), chance.randint(1, 4)
            for _ in range(turns):
                count, answer = chance.randint(1, 7), chance.choice([[5], [6, 7, 8]])
                ids += [*words(count), *answer]
                mask += [1] * count + [0] * len(answer)
            correct = 1.0 if equal else float(chance.random() < 0.5)
            steps = [RewardEntry(turn, "step:tool", chance.choice([0.0, 0.5, 1.0])) for turn in range(turns)]
            cost = RewardEntry(0, "call_cost", -chance.random())
            known = [(), steps] if positive else [(), (cost,), steps]
            # So that no advantage is 0 but for rounding: then it would be chance whether there is an update.
            style = RewardEntry(None, "reward:style", 0.5 if equal else chance.random(), 0.3)
            rewards = (RewardEntry(None, "reward:exact", correct, 2.0), style, *chance.choice(known))
            logprobs = torch.tensor([-chance.uniform(0, 9) if bit else 0.0 for bit in mask]).tolist()
            episode = make_episode(
                tuple(mask), ids=tuple(ids), logprobs=tuple(logprobs), index=index, group=name, id=f"{name}#{index}",
                failed=chance.random() < (0.0 if several else 0.1), rewards=rewards, metrics={"correct": correct},
            )  # fmt: skip
            if masks:
                episode = replace(episode, trajectories=(masked(episode.main, vocabulary, chance),))
            if episode.failure is None:
                episode = replace(episode, stop_reason=chance.choice(["answer", "answer", "max_tokens"]))
            episodes.append(episode)
        groups.append(Group(name, Task(name, ()), tuple(episodes)))
    return groups


def masked(trajectory: Trajectory, vocabulary: int, chance: random.Random) -> Trajectory:
    """With sampling masks."""
    sampled = [token for token, bit in zip(trajectory.ids, trajectory.loss_mask, strict=True) if bit]
    drawn_from = [sorted({token, *chance.sample(range(vocabulary), chance.randint(1, 60))}) for token in sampled]
    return replace(trajectory, sampling_masks=encode(drawn_from))


def near(
    groups: Sequence[Group], reference: Any, model: Any, temperature: float, chance: random.Random, *, teachers: bool
) -> list[Group]:
    """The groups with log-probabilities as sampled that lie around the model's, and with `teachers` their scores of
    most episodes."""
    found = []
    for group in groups:
        episodes = []
        for episode in group.episodes:
            row = reference.row_of(episode.main, {turn.index: 0.0 for turn in episode.turns})
            with torch.no_grad():
                ours = reference.scored(model, row, temperature)[0].tolist()
            spread = chance.choice([0.01, 0.1, 0.6])

            def around(of: Sequence[float], spread: float, mask: Sequence[int] = episode.main.loss_mask) -> Any:
                told = iter(torch.tensor([min(value + chance.gauss(0, spread), 0.0) for value in of]).tolist())
                return tuple(next(told) if bit else 0.0 for bit in mask)

            given = {"logprobs": around(ours, spread)}
            if teachers and chance.random() < 0.7:
                given["teacher_logprobs"] = around(ours, 1.0)
            episodes.append(replace(episode, trajectories=(replace(episode.main, **given),)))
        found.append(replace(group, episodes=tuple(episodes)))
    return found


def spread(tiny: Any, groups: Sequence[Group], chance: random.Random) -> list[Group]:
    """With the turns of each episode in up to three trajectories."""
    return [
        replace(
            group, episodes=tuple(tiny.spread(it, [chance.randrange(3) for _ in it.turns]) for it in group.episodes)
        )
        for group in groups
    ]


def drawn(chance: random.Random) -> dict[str, Any]:
    """A section `algorithm`."""
    pick = chance.choice
    baseline = pick(["group_mean", "leave_one_out", "batch_mean"])
    found: dict[str, Any] = {
        "preset": "grpo", "baseline": baseline, "ratio": pick(["token", "sequence"]),
        "scale": pick(["none", "batch_std", "advantage_std", *(["std"] if baseline != "batch_mean" else [])]),
        "loss_aggregation": pick(["token_mean", "sequence_mean", "sequence_sum", "constant"]),
        "surrogate": pick(["clip", "clip", "cispo"]), "clip_low": pick([1e-3, 0.2]), "clip_high": pick([1e-3, 0.3]),
        "drop_flat_groups": pick([True, False, False]), "filter_metric": pick(["correct", "reward"]),
        "mask_truncated": pick([True, False, False]), "entropy_coef": pick([0.0, 0.0, 0.05]),
    }  # fmt: skip
    if found["surrogate"] == "clip":
        found["clip_dual"] = pick([None, 1.5, 3.0])
    if pick([True, False]):
        found |= {"credit": "turn", "discount": pick([1.0, 0.9])}
    if pick([True, False]):
        found["overlong"] = {"tokens": 16, "buffer": pick([4, 16]), "penalty": 0.5}
    if pick([True, False]):
        found |= {"kl_coef": 0.2, "kl_estimator": pick(["k1", "k2", "k3"]), "kl_correction": pick([True, False])}
        found["kl_correction"] |= found["kl_estimator"] == "k1"
        if pick([True, False]):
            found |= {"kl_in": "reward", "kl_estimator": pick(["k1", "k3"]), "kl_correction": True}
            if found.get("credit") == "turn":
                found["scale"] = "none"
    if pick([True, False, False]):
        found["reference"] = pick([{}, {"sync_every": 1}, {"sync_every": 2}])
    if pick([True, False, False]):
        found["distillation"] = {
            "teachers": {"default": {"model": "x"}}, "kl_as": pick(["advantage", "loss"]), "coef": 0.5,
            "reward_weight": pick([0.0, 1.0]), "clip": pick([None, 0.5]),
        }  # fmt: skip
        if not found["distillation"]["reward_weight"]:
            found = {name: value for name, value in found.items() if name not in ("kl_in", "overlong")}
    if pick([True, False, False]):
        return found | {"old_logprobs": "sampled"}
    levels = ["token", "sequence", "mean"]
    if pick([True, False]):
        found["importance"] = {"level": pick(levels), "mode": pick(["truncate", "reject"]), "cap": pick([1.1, 2.0])}
    if pick([True, False]):
        low, high, negative = pick([0.0, 0.5]), pick([1.5, 9.0]), pick([True, False])
        found["rejection"] = {"level": pick(levels), "low": low, "high": high, "only_negative": negative}
    return found


def with_parts(case: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """The case with an estimator or a policy loss of the plugin `objectives` in some."""
    algorithm, pick = case["algorithm"], chance.choice
    if pick([True, False, False, False, False]):
        algorithm |= {"preset": "ppo", "scale": pick(["advantage_std", "none"]), "discount": pick([1.0, 0.9])}
        algorithm |= {"baseline": "critic", "credit": "turn"}
        clip, decay = pick([None, 0.02]), pick([0.8, 1.0])
        how = {"level": pick(["turn", "token"]), "value_clip": clip}
        algorithm["critic"] = {"learning_rate": 0.05, "gae_lambda": decay, **how}
    elif (name := pick([None, None, None, "gdpo", "maxrl", "gigpo"])) is not None:
        if name == "maxrl":
            algorithm.pop("kl_in", None)
        for void in ("baseline", "scale", "credit", "discount", "overlong"):
            algorithm.pop(void, None)
        options = None
        if name == "gigpo":
            anchor, scale = pick(["observation", "conversation"]), pick(["std", "none"])
            options = GiGPOOptions(step_weight=pick([1.0, 0.5]), discount=pick([1.0, 0.9]), anchor=anchor, scale=scale)
        algorithm["advantage"] = {"use": name}
        case["estimator"] = (name, options)
    if pick([True, False, False, False]):
        for void in ("surrogate", "ratio", "clip_low", "clip_high", "clip_dual", "importance"):
            algorithm.pop(void, None)
        limits = {"clip_low": pick([None, 1e-3]), "clip_high": pick([None, 1e-3]), "ratio_cap": pick([1.1, 20.0])}
        algorithm["policy_loss"] = {"use": "dppo"}
        case["dppo"] = DPPOOptions(divergence=pick(["tv", "kl"]), **limits)
    context: Any = None
    case["parts"] = {}
    if "estimator" in case:
        name, options = case["estimator"]
        case["parts"]["estimator"] = {"gdpo": GDPO, "maxrl": MaxRL, "gigpo": GiGPO}[name](options, context)
    if "dppo" in case:
        case["parts"]["custom_loss"] = DPPO(case["dppo"], context)
    return case


def settings_of(chance: random.Random) -> dict[str, Any]:
    """A section `trainer`. With an `eps` so great, AdamW doesn't magnify what gradients of nearly 0 differ by."""
    pick = chance.choice
    return {
        "learning_rate": 0.05, "eps": 1.0, "steps": 10, "max_grad_norm": 1e9, "updates_per_step": pick([1, 2, 3]),
        "epochs_per_step": pick([1, 1, 2]), "tokens_per_microbatch": pick([50, 120, 10_000]),
        "share_prefix": pick([True, False]),
    }  # fmt: skip


class Cases:
    """Random cases for `ranks_worker.train`, with what the reference makes of them."""

    def __init__(self, tiny: Any, make_episode: Any, beside: Callable[[str], Any]) -> None:
        self.tiny, self.make_episode = tiny, make_episode
        self.reference, self.policy_of = beside("objective_reference"), beside("ranks_worker").policy_of
        self.model = tiny.model("gpt2", dtype="float64")

    def draw(self, seed: int, **fixed: Any) -> dict[str, Any]:
        chance = random.Random(seed)
        case: dict[str, Any] = {"settings": settings_of(chance), "algorithm": drawn(chance), "gradients": True}
        case["temperature"] = chance.choice([1.0, 1.3])
        if chance.random() < 0.3:
            case["lora"] = {"rank": 4, "alpha": 8}
        case = with_parts(case, chance)
        case |= fixed
        case["masked"] = chance.random() < 0.25
        estimator = case.get("estimator", ("",))[0]
        # GDPO's advantage of a group of one may be 0 but for rounding.
        kinds = {"masks": case["masked"], "positive": estimator == "maxrl", "several": estimator == "gdpo"}
        steps = [groups_of(chance, self.tiny.vocabulary, self.make_episode, step, **kinds) for step in range(3)]
        model = self.policy_of(self.model, case).model
        teachers = "distillation" in case["algorithm"]
        steps = [
            near(groups, self.reference, model, case["temperature"], chance, teachers=teachers) for groups in steps
        ]
        cut = chance.random() < 0.5 and not (case["masked"] or "critic" in case["algorithm"])
        case["steps"] = [spread(self.tiny, groups, chance) if cut else groups for groups in steps]
        return case

    def expected(self, case: Mapping[str, Any]) -> tuple[list[float], list[torch.Tensor]]:
        """The loss of each step, and the gradients of each update."""
        settings, algorithm = TrainerConfig(**case["settings"]), AlgorithmConfig(**case["algorithm"])
        model = self.policy_of(self.model, case).model
        made = self.reference.Reference(
            model, settings, algorithm, temperature=case["temperature"], longest=16, together=settings.share_prefix,
            estimator=case.get("estimator"), dppo=case.get("dppo"),
        )  # fmt: skip
        return [made.update(groups) for groups in case["steps"]], made.gradients

    def difference(self, case: Mapping[str, Any], result: Any) -> float:
        """The greatest of the losses, relative to 1 or more, and of the gradients, to their greatest or 1e-6."""
        losses, gradients = self.expected(case)
        metrics, found = result
        assert len(found) == len(gradients)
        found_losses = [it.get("loss", 0.0) for it in metrics]
        of_losses = [abs(a - b) / max(abs(b), 1.0) for a, b in zip(found_losses, losses, strict=True)]
        pairs = zip(found.values(), gradients, strict=True)
        return max([*of_losses, *(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)])


@pytest.fixture
def cases(tiny: Any, make_episode: Any, beside: Callable[[str], Any]) -> Cases:
    return Cases(tiny, make_episode, beside)


@pytest.mark.parametrize(
    "seeds", [range(FEW), pytest.param(range(FEW, MANY), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_updates_are_those_of_the_reference(cases: Cases, seeds: range, train: Any, tmp_path: Path) -> None:
    differences, updates = {}, 0
    for seed in seeds:
        case = cases.draw(seed)
        result = train(cases.model, case, tmp_path, ONE)
        differences[seed] = cases.difference(case, result)
        updates += len(result[1])
    worst = max(differences, key=lambda seed: differences[seed])
    print(
        f"{len(differences)} configurations, {updates} updates, greatest difference {differences[worst]:.1e} ({worst})"
    )
    assert updates > 2 * len(differences)
    assert differences[worst] < TOLERANCE, {seed: value for seed, value in differences.items() if value > TOLERANCE}


@pytest.mark.parametrize(
    "seeds", [range(10), pytest.param(range(10, 200), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_so_are_those_of_two_ranks(cases: Cases, seeds: range, on_ranks: Any, tmp_path: Path) -> None:
    chosen = {str(seed): cases.draw(seed) for seed in seeds}
    (tmp_path / "work.pkl").write_bytes(pickle.dumps({"model": cases.model, "cases": chosen}))
    on_ranks(2, [sys.executable, str(WORKER), str(tmp_path)])
    found = torch.load(tmp_path / "results.pt", weights_only=False)
    differences = {name: cases.difference(case, found[name]) for name, case in chosen.items()}
    print(f"{len(differences)} configurations, greatest difference {max(differences.values()):.1e}")
    assert max(differences.values()) < TOLERANCE, differences
