"""Truncated sampling: the engine records what each token was drawn from, and the trainer computes with that."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.types import Generation, Group, RewardEntry, Sampling, Segment, Turn
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.sampling_masks import decode
from toolrl_plugin_torch.trainer import PolicyTrainer

PROMPT, ANSWER = list(range(5, 75)), [7, 8, 9]
SETTINGS = [
    {"top_p": 0.9},
    {"top_k": 5},
    {"min_p": 0.05},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.1},
]


def _kept_by_transformers(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Logits after transformers' own warpers `[1, V]`."""
    none: Any = None
    scores = transformers.TemperatureLogitsWarper(sampling.temperature)(none, logits)
    if sampling.top_k:
        scores = transformers.TopKLogitsWarper(sampling.top_k)(none, scores)
    scores = transformers.TopPLogitsWarper(sampling.top_p)(none, scores)
    return transformers.MinPLogitsWarper(sampling.min_p)(none, scores)


@pytest.mark.parametrize("settings", SETTINGS)
async def test_the_engine_samples_from_what_transformers_keeps(
    qwen3: Any, engine: Any, settings: dict[str, float]
) -> None:
    sampling = Sampling(30, temperature=1.3, seed=1, keep_masks=True, **settings)
    async with engine(qwen3) as running:
        done = await running.generate(PROMPT, sampling, session="a")
        plain = await running.generate(PROMPT, replace(sampling, keep_masks=False), session="b")
    assert plain.ids == done.ids
    assert plain.sampling_masks == b""
    with torch.no_grad():
        logits = qwen3(input_ids=torch.tensor([[*PROMPT, *done.ids]])).logits[0, len(PROMPT) - 1 : -1].float()
    kept = decode(done.sampling_masks, done.ids)
    found = kept.ids_M.split(kept.counts_N.tolist())
    assert len({len(ids) for ids in found}) > 1 or "top_k" in settings
    for row, token, ids, logprob in zip(logits, done.ids, found, done.logprobs, strict=True):
        left = _kept_by_transformers(row[None], sampling)[0]
        assert ids.tolist() == left.isfinite().nonzero()[:, 0].tolist()
        assert logprob == pytest.approx(float(left.log_softmax(-1)[token]), abs=1e-5)


async def test_rows_with_and_without_masks_share_a_batch(qwen3: Any, engine: Any) -> None:
    rows = [Sampling(9, top_k=3, seed=n, keep_masks=n % 2 == 0) for n in range(4)] + [Sampling(9, temperature=0.0)]
    async with engine(qwen3) as running:
        alone = [await running.generate(PROMPT, row, session=f"alone {n}") for n, row in enumerate(rows)]
        many = await asyncio.gather(
            *(running.generate(PROMPT, row, session=f"together {n}") for n, row in enumerate(rows))
        )
    assert [it.sampling_masks for it in many] == [it.sampling_masks for it in alone]
    assert [bool(it.sampling_masks) for it in many] == [True, False, True, False, False]


class _Pad:
    pad_token_id = 0


def _episode(finished_episode: Any, index: int, first: Generation, second: Generation) -> Any:
    """Two turns with a tool's answer between."""
    gap, prompt = len(ANSWER), len(PROMPT)
    ids = (*PROMPT, *first.ids, *ANSWER, *second.ids)
    spans = ((prompt, prompt + len(first.ids)), (prompt + len(first.ids) + gap, len(ids)))
    return finished_episode(
        "", index=index, rewards=[RewardEntry(None, "reward:exact", float(index % 2))], ids=ids,
        loss_mask=(*[0] * prompt, *[1] * len(first.ids), *[0] * gap, *[1] * len(second.ids)),
        logprobs=(*[0.0] * prompt, *first.logprobs, *[0.0] * gap, *second.logprobs),
        turns=tuple(Turn(n, (Segment("model", "", span),), (), (), "stop") for n, span in enumerate(spans)),
        sampling_masks=first.sampling_masks + second.sampling_masks, temperature=0.7,
    )  # fmt: skip


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize("settings", SETTINGS)
async def test_the_trainer_computes_what_the_engine_sampled_from(
    qwen3: Any,
    engine: Any,
    weights: Any,
    finished_episode: Any,
    tmp_path: Path,
    settings: dict[str, float],
    share: bool,
) -> None:
    """After each of several steps of two updates; rows have several lengths."""
    model = copy.deepcopy(qwen3)
    policy = PolicyModel(model, _Pad(), "tiny", torch.device("cpu"), torch.float32)
    trainer = PolicyTrainer(
        policy, TrainerConfig(share_prefix=share, learning_rate=3e-3, updates_per_step=2, tokens_per_microbatch=250),
        AlgorithmConfig(preset="grpo", group_size=4, kl_coef=0.1, entropy_coef=0.01), tmp_path,
        temperature=0.7, longest=40,
    )  # fmt: skip
    mismatch, kl = [], []
    async with engine(model) as running:
        for step in range(3):
            episodes = []
            for index in range(4):
                sampling = Sampling(8 + 3 * index, temperature=0.7, seed=10 * step + index, keep_masks=True, **settings)
                first = await running.generate(PROMPT, sampling, session=f"{step} {index}")
                so_far = [*PROMPT, *first.ids, *ANSWER]
                second = await running.generate(so_far, replace(sampling, seed=99), session=f"{step} {index}")
                episodes.append(_episode(finished_episode, index, first, second))
            metrics = trainer.update([Group(episodes[0].group, episodes[0].task, tuple(episodes))])
            await running.update_weights(weights(model, step + 1), step + 1)
            mismatch.append(metrics["logprob_mismatch/max"])
            kl.append(metrics["kl"])
    assert max(mismatch) <= 1e-5
    assert kl[-1] > 1e-3
