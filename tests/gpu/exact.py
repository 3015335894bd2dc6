"""Exactness on the device: what the engine reports against what the trainer computes, and gradients with shared
beginnings against those without.

Mismatch: the engine samples groups at temperature 1, and the trainer scores the same tokens with the same weights, in
float32 and bfloat16. Gradients: of a weighted sum of log-probabilities over the same sequences, in float64, float32 and
bfloat16; those of float64 without sharing are the measure for all. Distances are relative: the greatest difference over
the greatest gradient, and the norm of the difference over the norm.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from settings import Settings

DTYPES = ("float32", "bfloat16")
BUDGET = 2048
"""Tokens of a micro-batch: in float64, whose attention holds all its scores, a model of half a billion parameters takes
some ten megabytes for each."""


def run(settings: Settings) -> dict[str, Any]:
    import torch

    from toolrl_plugin_torch.options import ModelConfig
    from toolrl_plugin_torch.policy import load_policy

    device = torch.device(settings.device)
    mismatch, samples = {}, []
    for dtype in DTYPES:
        policy = load_policy(ModelConfig(path=settings.model, dtype=dtype), settings.model, device)
        samples = asyncio.run(_sample(policy, settings))
        mismatch[dtype] = {kind: _mismatch(policy.model, samples, share=share) for kind, share in KINDS.items()}
    policy = load_policy(ModelConfig(path=settings.model, dtype="float32"), settings.model, device)
    # The weights of all are those that bfloat16 can hold, so that only the arithmetic differs.
    model = _cast(_cast(policy.model, torch.bfloat16), torch.float64)
    reference = _gradients(model, samples, share=False)
    gradients = {"float64": {"shared": _distance(_gradients(model, samples, share=True), reference)}}
    for dtype in DTYPES:
        model = _cast(policy.model, getattr(torch, dtype))
        gradients[dtype] = {
            kind: _distance(_gradients(model, samples, share=share), reference) for kind, share in KINDS.items()
        }
    return {"mismatch": mismatch, "gradients": gradients, "tokens": sum(sample.trained_tokens for sample in samples)}


KINDS = {"whole": False, "shared": True}


def _cast(model: Any, dtype: Any) -> Any:
    """The parameters in another type; buffers (angles of the rotary embedding) stay as precise as they are."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


async def _sample(policy: Any, settings: Settings) -> list[Any]:
    """Groups of random prompts, sampled by the engine."""
    from toolrl.protocols import BuildContext
    from toolrl.types import Sampling
    from toolrl_plugin_torch.batch import Sample
    from toolrl_plugin_torch.policy import PolicyWeights
    from toolrl_plugin_transformers.engine import TransformersEngine
    from toolrl_plugin_transformers.options import TransformersEngineOptions

    groups, size, prompt, new = (2, 3, 40, 12) if settings.dry else (8, 8, 200, 128)
    chance = random.Random(0)
    vocabulary = policy.model.config.get_text_config().vocab_size
    prompts = [[chance.randrange(vocabulary) for _ in range(prompt)] for _ in range(groups)]
    engine = TransformersEngine(TransformersEngineOptions(), BuildContext("measure", weights=PolicyWeights(policy, 0)))
    await engine.start()
    try:
        # Of different length, so that rows leave and others move up.
        jobs = [
            engine.generate(
                prompts[number // size], Sampling(new - 3 * (number % size), seed=number), session=f"{number}"
            )
            for number in range(groups * size)
        ]
        found = await asyncio.gather(*jobs)
    finally:
        await engine.stop()
    samples = []
    for number, generation in enumerate(found):
        begin, count = prompts[number // size], len(generation.ids)
        mask = [0] * prompt + [1] * count
        advantages = [0.0] * prompt + [chance.uniform(-1, 1) for _ in range(count)]
        samples.append(Sample([*begin, *generation.ids], mask, [*[0.0] * prompt, *generation.logprobs], advantages))
    return samples


def _scored(model: Any, samples: Sequence[Any], *, share: bool) -> Any:
    """The micro-batches of the samples on the model's device, each with its log-probabilities, one after another."""
    from toolrl_plugin_torch.batch import pack
    from toolrl_plugin_torch.logprob import TokenScorer
    from toolrl_plugin_torch.prefixes.tree_attention import over_trees

    device = next(iter(model.parameters())).device
    score = TokenScorer(model.train())
    for batch in pack(samples, BUDGET, share=share):
        batch = batch.to(device)
        with over_trees([model]) if share else nullcontext():
            scored = score(batch.input_ids_BT, batch.attention_mask_BT, batch.loss_mask_BT, tree=batch.tree)
            yield batch, scored.logprobs_BT


def _mismatch(model: Any, samples: Sequence[Any], *, share: bool) -> dict[str, float]:
    import torch

    distances = []
    with torch.no_grad():
        for batch, logprobs_BT in _scored(model, samples, share=share):
            distances.append((logprobs_BT - batch.rollout_logprobs_BT).abs()[batch.loss_mask_BT])
    joined = torch.cat(distances).double()
    return {"mean": float(joined.mean()), "max": float(joined.max())}


def _gradients(model: Any, samples: Sequence[Any], *, share: bool) -> dict[str, Any]:
    """By name, float64 on the CPU."""
    import torch

    model.zero_grad(set_to_none=True)
    count = sum(sample.trained_tokens for sample in samples)
    for batch, logprobs_BT in _scored(model, samples, share=share):
        # Inside of the generator's `over_trees`, which the backward pass needs too.
        (logprobs_BT * batch.advantages_BT)[batch.loss_mask_BT].sum().div(count).backward()
    found = {
        name: p.grad.detach().to("cpu", torch.float64) for name, p in model.named_parameters() if p.grad is not None
    }
    model.zero_grad(set_to_none=True)
    return found


def _distance(mine: dict[str, Any], reference: dict[str, Any]) -> dict[str, float]:
    greatest = max(float(value.abs().max()) for value in reference.values())
    norm = sum(float(value.square().sum()) for value in reference.values()) ** 0.5
    apart = max(float((mine[name] - value).abs().max()) for name, value in reference.items())
    square = sum(float((mine[name] - value).square().sum()) for name, value in reference.items())
    return {"max": apart / greatest, "norm": square**0.5 / norm}


def headline(figures: dict[str, Any]) -> str:
    worst = {name: max(kind["max"] for kind in kinds.values()) for name, kinds in figures["mismatch"].items()}
    distances = ", ".join(f"{name} {value:.1e}" for name, value in worst.items())
    apart = figures["gradients"]["float64"]["shared"]["max"]
    return f"mismatch at most {distances}; shared gradients in float64 off by {apart:.1e}"
