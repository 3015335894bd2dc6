"""On-policy distillation: the objective against exact divergences and against a step made by hand, and who is scored by
which teacher."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.errors import ConfigError, EngineError
from toolrl.types import Group
from toolrl_plugin_torch.algorithm import AlgorithmConfig, DistillationConfig
from toolrl_plugin_torch.batch import Sample
from toolrl_plugin_torch.loop import teachers as teachers_module
from toolrl_plugin_torch.loop.teachers import TaughtGroups, Teachers, _check_same_words
from toolrl_plugin_torch.objective.distillation import taught
from toolrl_plugin_torch.objective.loss import Normaliser, policy_loss

LOGITS, TEACHER = (
    torch.tensor(values, dtype=torch.float64) for values in ([0.3, -0.5, 1.1, 0.2], [-0.7, 0.9, 0.6, -1.3])
)
COEF, REWARDS, CAP, CLIP = 0.7, 0.4, 1.5, 2.0


def settings(**fields: Any) -> DistillationConfig:
    return DistillationConfig(**{"teachers": {"default": {"model": "m"}}, "coef": COEF, **fields})


def algorithm(**fields: Any) -> AlgorithmConfig:
    return AlgorithmConfig(loss_aggregation="token_mean", distillation=settings(**fields))


def expected_gradient(kl_as: Any) -> torch.Tensor:
    """Over the policy's own tokens, by its logits."""
    logits = LOGITS.clone().requires_grad_()
    policy, teacher = logits.log_softmax(0), TEACHER.log_softmax(0)
    total = torch.zeros((), dtype=torch.float64)
    for token in range(4):
        own = float(policy[token].detach())
        sample = taught(
            Sample([0, token], [0, 1], [0.0, own], [0.0, 0.0], teacher_logprobs=[0.0, float(teacher[token])]),
            settings(kl_as=kl_as),
        )
        mask_BT, normaliser = torch.tensor([[False, True]]), Normaliser("token_mean", 1, 1)
        loss, _ = policy_loss(
            torch.stack([policy[token] * 0, policy[token]])[None],
            torch.tensor([sample.advantages], dtype=torch.float64),
            mask_BT,
            normaliser,
            algorithm(kl_as=kl_as),
            rollout_logprobs_BT=torch.tensor([[0.0, own]], dtype=torch.float64),
            teacher_logprobs_BT=torch.tensor([sample.teacher_logprobs], dtype=torch.float64),
        )
        total = total + policy[token].detach().exp() * loss
    return torch.autograd.grad(total, logits)[0]


@pytest.mark.parametrize("kl_as", ["advantage", "loss"])
def test_the_expected_gradient_is_that_of_the_reverse_kl_divergence(kl_as: str) -> None:
    logits = LOGITS.clone().requires_grad_()
    policy, teacher = logits.log_softmax(0), TEACHER.log_softmax(0)
    exact = COEF * (policy.exp() * (policy - teacher)).sum()
    torch.testing.assert_close(expected_gradient(kl_as), torch.autograd.grad(exact, logits)[0])


@pytest.mark.parametrize("kl_as", ["advantage", "loss"])
def test_the_expected_gradient_is_that_of_trl(kl_as: str) -> None:
    """TRL's loss over whole distributions, `beta` 1; the logits are its head's weights."""
    trl = pytest.importorskip("trl.trainer.distillation_trainer")
    logits = LOGITS.float().clone().requires_grad_()
    one = torch.ones(1, 1, 1)
    loss, _, _ = trl._chunked_divergence_loss(
        one, one, logits[:, None], TEACHER.float()[:, None], torch.ones(1, 1), beta=1.0
    )
    gradient = torch.autograd.grad(COEF * loss, logits)[0].double()
    torch.testing.assert_close(expected_gradient(kl_as), gradient, rtol=0, atol=1e-6)


def with_teacher(group: Group, seed: int, *, environment: str = "default", scored: bool = True) -> Group:
    chance, episodes = torch.Generator().manual_seed(seed), []
    for episode in group.episodes:
        parts = []
        for it in episode.trajectories:
            drawn = (-4 * torch.rand(len(it.ids), generator=chance)).tolist()
            values = tuple(value if bit else 0.0 for value, bit in zip(drawn, it.loss_mask, strict=True))
            parts.append(replace(it, teacher_logprobs=values if scored else None))
        episodes.append(replace(episode, environment=environment, trajectories=tuple(parts)))
    return replace(group, episodes=tuple(episodes))


def by_hand(model: Any, groups: Sequence[Group], advantages: Sequence[Sequence[float]], kl_as: str) -> torch.Tensor:
    """The loss of a step's only update, token by token from full logits."""
    terms = []
    for group, of_group in zip(groups, advantages, strict=True):
        for episode, advantage in zip(group.episodes, of_group, strict=True):
            for it in episode.trajectories:
                table = model(input_ids=torch.tensor([it.ids])).logits[0].log_softmax(-1)
                for place in (place for place, bit in enumerate(it.loss_mask) if bit):
                    now, told = table[place - 1, it.ids[place]], it.logprobs[place]
                    weight, credit, divergence = float((now - told).exp()), REWARDS * advantage, 0.0
                    if it.teacher_logprobs is not None:
                        away = (it.teacher_logprobs[place] - now.detach()).clamp(-CLIP, CLIP)
                        if kl_as == "advantage":
                            credit += COEF * min(max(it.teacher_logprobs[place] - told, -CLIP), CLIP)
                        else:
                            # Its value is k3's and its gradient (log policy − log teacher) · ∇ log policy.
                            k3 = float(away.exp() - away - 1)
                            divergence = weight * (k3 - float(away) * (now - now.detach()))
                    terms.append(-min(weight, CAP) * (1 + now - now.detach()) * credit + COEF * divergence)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("kl_as", ["advantage", "loss"])
def test_a_step_is_the_one_made_by_hand(kl_as: str, share: bool, tiny: Any, tmp_path: Path) -> None:
    """A group with unequal rewards, a flat one, and one of an environment without a teacher; an episode in two
    trajectories."""
    model = tiny.model(dtype="float64")
    copied = copy.deepcopy(model)
    spread = tiny.group([1.0, 0.0], seed=1)
    spread = replace(spread, episodes=(tiny.spread(spread.episodes[0], (0, 1)), spread.episodes[1]))
    groups = [
        with_teacher(spread, 7),
        with_teacher(tiny.group([0.0, 0.0], seed=2), 8, environment="math"),
        with_teacher(tiny.group([1.0, 0.0], seed=3), 9, environment="alone", scored=False),
    ]
    advantage = 0.5 / (0.5**0.5 + 1e-4)
    config = {
        "loss_aggregation": "token_mean", "importance": {"level": "token", "cap": CAP},
        "distillation": settings(kl_as=kl_as, reward_weight=REWARDS, clip=CLIP).model_dump(),
    }  # fmt: skip
    trainer = tiny.trainer(
        tmp_path, tiny.policy(model), config, max_grad_norm=1e9, share_prefix=share, updates_per_step=1,
        tokens_per_microbatch=40,
    )  # fmt: skip
    loss = by_hand(copied, groups, [[advantage, -advantage], [0.0, 0.0], [advantage, -advantage]], kl_as)
    copied.zero_grad()
    loss.backward()
    adamw = torch.optim.AdamW(copied.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    metrics = trainer.update(groups)
    assert metrics["loss"] == pytest.approx(float(loss.detach()), abs=1e-6)
    adamw.step()
    for ours, theirs in zip(model.parameters(), copied.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    values = [
        own - teacher
        for group in groups[:2]
        for episode in group.episodes
        for it in episode.trajectories
        for own, teacher, bit in zip(it.logprobs, it.teacher_logprobs or (), it.loss_mask, strict=True)
        if bit
    ]
    assert metrics["distillation/kl"] == pytest.approx(sum(values) / len(values))
    assert metrics["distillation/kl_max"] == max(values)


class Scores:
    """An engine that gives each token its id as log-probability, less a fixed number."""

    def __init__(self, less: float = 0.0, failures: int = 0, error: type[Exception] = EngineError) -> None:
        self.less, self.failures, self.error, self.asked = less, failures, error, 0

    async def score(self, ids: Sequence[int], start: int, **options: Any) -> list[float]:
        self.asked += 1
        if self.failures:
            self.failures -= 1
            raise self.error("the server is down")
        return [-float(it) - self.less for it in ids[start:]]


async def test_each_trajectory_is_scored_by_its_environments_teacher_once(tiny: Any) -> None:
    both = tiny.spread(tiny.group([1.0], seed=1).episodes[0], (0, 1))
    untrained = replace(both.trajectories[1], trained=False)
    groups = [
        Group("a", both.task, (replace(both, id="a#0", trajectories=(both.trajectories[0], untrained)),)),
        tiny.group([0.0, None], seed=2, environment="math"),
    ]
    default, math = Scores(), Scores(less=100.0)
    teachers = Teachers({"default": default, "math": math}, concurrency=2)
    scores = await teachers.scores(groups)
    assert scores.keys() == {("a#0", 0), ("group-2#0", 0)}  # Neither untrained ones nor failed episodes.
    it = groups[1].episodes[0].trajectories[0]
    expected = tuple(-id_ - 100.0 if bit else 0.0 for id_, bit in zip(it.ids, it.loss_mask, strict=True))
    assert scores["group-2#0", 0] == expected
    assert teachers.metrics()["time/teacher"] > 0
    assert teachers.metrics() == {}
    known = [teachers_module._with_scores(group, scores) for group in groups]
    assert await teachers.scores(known) == {}
    assert (default.asked, math.asked) == (1, 1)
    assert await Teachers({"math": math}, 2).scores(groups[:1]) == {}


class TwoRanks:
    """This is the first of two ranks, and the other one's teacher gives 7 for all."""

    rank, size = 0, 2

    async def all_of(self, work: Any, what: str) -> list[Any]:
        return [await work, {("group-2#0", 0): (7.0,)}]


async def test_ranks_share_the_scoring(tiny: Any) -> None:
    groups = [tiny.group([1.0], seed=1), tiny.group([1.0], seed=2)]

    class Source:
        gate = notify = check = None

        async def run(self, *arguments: Any, **options: Any) -> list[Group]:
            return groups

    engine, ranks, source = Scores(), TwoRanks(), Source()
    found = await TaughtGroups(source, Teachers({"default": engine}, 8), ranks).run([], 1, None, round_id="x")  # type: ignore[arg-type]
    assert engine.asked == 1
    assert found[0].episodes[0].trajectories[0].teacher_logprobs is not None
    assert found[1].episodes[0].trajectories[0].teacher_logprobs == (7.0,)


def test_another_vocabulary_is_refused() -> None:
    class Words:
        def __init__(self, *words: str) -> None:
            self.eos_token = words[-1]
            self._words = {word: number for number, word in enumerate(words)}

        def get_vocab(self) -> dict[str, int]:
            return self._words

    class Holder:
        def __init__(self, *words: str) -> None:
            self.tokenizer = Words(*words)

    student: Any = Holder("a", "b", "end")
    larger: Any = Holder("a", "b", "end", "more")
    other: Any = Holder("a", "c", "b", "end")
    _check_same_words(student, larger, "here")
    with pytest.raises(ConfigError, match="here: 2 of the policy's 3 tokens .* 'b' is 1 for the policy and 2 for the"):
        _check_same_words(student, other, "here")


async def test_a_servers_tokenizer_is_compared_by_a_text(tiny: Any, tmp_path: Path, caplog: Any) -> None:
    tokenizer = tiny.load(tiny.save(tmp_path / "model")).tokenizer

    class Server:
        shift = 0

        async def tokenize(self, text: str) -> list[int]:
            return [it + self.shift for it in tokenizer.encode(text, add_special_tokens=False)]

    server = Server()
    await teachers_module._check_same_ids(tokenizer, server, "here")
    assert not caplog.records
    server.shift = 1
    with pytest.raises(ConfigError, match="here: the server's tokenizer isn't the policy's"):
        await teachers_module._check_same_ids(tokenizer, server, "here")
    await teachers_module._check_same_ids(tokenizer, object(), "here")
    assert "its tokenizer isn't compared with the policy's" in caplog.text


async def test_a_teacher_that_is_down_is_asked_again_and_then_named(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teachers_module, "PAUSES", (0.0, 0.0))
    groups = [tiny.group([1.0], seed=1)]
    assert await Teachers({"default": Scores(failures=2)}, 1).scores(groups)
    with pytest.raises(EngineError, match="algorithm.distillation.teachers.default: the server is down"):
        await Teachers({"default": Scores(failures=3)}, 1).scores(groups)
