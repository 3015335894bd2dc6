"""Routes of a mixture of experts: the engine records them, and the trainer's log-probabilities follow them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.types import Group, RewardEntry, Sampling, Segment, Turn
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.routes import Routers
from toolrl_plugin_torch.trainer import PolicyTrainer

PROMPT = list(range(5, 53))
ANSWER = [7, 8, 9]


def _mixture(sizes: dict[str, Any], build: Any, kind: str = "qwen3_moe") -> Any:
    experts: dict[str, Any] = {"num_local_experts": 8} if kind == "mixtral" else {"num_experts": 8}
    if kind == "qwen3_moe":
        experts |= {"head_dim": 8, "moe_intermediate_size": 32, "norm_topk_prob": True}
    return build(transformers.AutoConfig.for_model(kind, **sizes, **experts, num_experts_per_tok=2))


async def _two_turns(running: Any) -> list[tuple[list[int], int, Any, Any]]:
    """Of two sessions with a prompt in common: its ids, where the second turn begins, and both generations."""
    found = []
    for name, prompt in (("a", PROMPT), ("b", [*PROMPT, 60, 61])):
        first = await running.generate(prompt, Sampling(6, seed=1), session=name)
        ids = [*prompt, *first.ids, *ANSWER]
        found.append((ids, first))
    turns = []
    for (ids, first), name in zip(found, "ab", strict=True):
        second = await running.generate(ids, Sampling(5, seed=2), session=name)
        turns.append(([*ids, *second.ids], len(ids), first, second))
    return turns


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
async def test_the_engine_records_the_experts_of_each_token(
    sizes: dict[str, Any], build: Any, engine: Any, kind: str
) -> None:
    """Also of tokens whose keys come from another session, or were parked between two turns."""
    model = _mixture(sizes, build, kind)
    async with engine(model, return_routes=True) as running:
        turns = await _two_turns(running)
    routers = Routers(model, "here")
    for ids, start, first, second in turns:
        with torch.no_grad(), routers.recording() as plain:
            model(input_ids=torch.tensor([ids]))
        assert second.cached > 0
        expected = torch.stack(plain, dim=1)[:-1]
        assert torch.equal(routers.decode(second.routes, len(ids) - 1).long(), expected)
        before = start - len(ANSWER) - 1
        assert first.routes == second.routes[: len(first.routes)]
        assert torch.equal(routers.decode(first.routes, before).long(), expected[:before])


class _Pad:
    pad_token_id = 0


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("share", [False, True])
async def test_an_update_follows_the_routes_of_the_rollout(
    sizes: dict[str, Any],
    build: Any,
    engine: Any,
    finished_episode: Any,
    tmp_path: Path,
    checkpointing: bool,
    share: bool,
) -> None:
    """Where the update's router is noisy and scores are close, other experts would be chosen."""
    model = _mixture(sizes, build)
    gates = [part.gate.weight for part in model.modules() if hasattr(part, "gate") and hasattr(part, "experts")]
    with torch.no_grad():
        for gate in gates:
            gate.mul_(1e-4)
    async with engine(model, return_routes=True) as running:
        turns = await _two_turns(running)
    with torch.no_grad():
        for gate in gates:
            gate.add_(torch.randn(gate.shape, generator=torch.Generator().manual_seed(3)) * 1e-4)
    episodes = []
    for (ids, start, first, second), reward in zip(turns, (1.0, 0.0), strict=True):
        prompt = start - len(ANSWER) - len(first.ids)
        mask = [0] * prompt + [1] * len(first.ids) + [0] * len(ANSWER) + [1] * len(second.ids)
        logprobs = [0.0] * prompt + [*first.logprobs] + [0.0] * len(ANSWER) + [*second.logprobs]
        spans = ((prompt, prompt + len(first.ids)), (start, len(ids)))
        made = (Turn(number, (Segment("model", "", span),), (), (), "stop") for number, span in enumerate(spans))
        fields = {"ids": tuple(ids), "loss_mask": tuple(mask), "logprobs": tuple(logprobs), "turns": tuple(made)}
        rewards = [RewardEntry(None, "reward:exact", reward)]
        episodes.append(finished_episode("", index=len(episodes), rewards=rewards, routes=second.routes, **fields))
    group = Group(episodes[0].group, episodes[0].task, tuple(episodes))

    mismatch, changed = {}, {}
    for replay in (False, True):
        policy = PolicyModel(copy.deepcopy(model), _Pad(), "tiny", torch.device("cpu"), torch.float32)
        if checkpointing:
            policy.model.gradient_checkpointing_enable({"use_reentrant": False})
        settings = TrainerConfig(router_replay=replay, share_prefix=share, learning_rate=1e-3)
        algorithm = AlgorithmConfig(preset="grpo", group_size=2)
        trainer = PolicyTrainer(policy, settings, algorithm, tmp_path, temperature=1.0, longest=100)
        metrics = trainer.update([group])
        mismatch[replay] = metrics["logprob_mismatch/max"]
        weight = policy.model.model.layers[0].mlp.gate.weight
        changed[replay] = not torch.equal(weight, model.model.layers[0].mlp.gate.weight)
    assert mismatch[False] > 0.05
    assert mismatch[True] < 0.005
    assert changed[True]
