"""Remarks on the trainer's sections of a config: no mistakes, but their effect may surprise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from toolrl.config.model import Config


def remarks(config: Config) -> Iterator[str]:
    """A line each, with its place in the config."""
    algorithm: Any = config.algorithm
    trainer: Any = config.trainer
    for name in ("drop_flat_groups", "dynamic_sampling"):
        learns = algorithm.advantage is None and algorithm.baseline in ("batch_mean", "critic")
        if learns and getattr(algorithm, name):
            yield (
                f"algorithm.{name}: with the baseline {algorithm.baseline} groups of equal rewards teach something "
                "too, and are left out"
            )
    stale = config.rollout.max_staleness
    if stale and algorithm.importance is None and algorithm.old_logprobs != "sampled":
        yield (
            f"rollout.max_staleness {stale}: stale samples are trained on as if the policy had just drawn them; set "
            "`algorithm.importance: {}` to weigh them"
        )
    episodes = trainer.prompts_per_step * algorithm.group_size
    if trainer.updates_per_step > episodes:
        yield (
            f"trainer.updates_per_step {trainer.updates_per_step}: a step has {episodes} episodes "
            f"({trainer.prompts_per_step} prompts_per_step × group_size {algorithm.group_size}), so there are no more "
            "updates than that"
        )
    if "reference" in trainer.offload and not algorithm.kl_coef:
        yield "trainer.offload: reference: there is none, as algorithm.kl_coef is 0"
    if "critic" in trainer.offload and algorithm.baseline != "critic":
        yield "trainer.offload: critic: there is none in this algorithm"
