"""What is no mistake in the sections of the trainer and yet may surprise."""

from __future__ import annotations

from typing import Any

from toolrl.config.model import Config


def remarks(config: Config) -> list[str]:
    """A line each, with its place in the config."""
    return [line for part in (_objective, _staleness, _updates, _offload) for line in part(config)]


def _objective(config: Config) -> list[str]:
    algorithm: Any = config.algorithm
    lines = []
    if algorithm.advantage is None and algorithm.baseline in ("batch_mean", "critic"):
        lines += [
            f"algorithm.{name}: with the baseline {algorithm.baseline} groups of equal rewards teach something "
            "too, and are left out"
            for name in ("drop_flat_groups", "dynamic_sampling")
            if getattr(algorithm, name)
        ]
    return lines


def _staleness(config: Config) -> list[str]:
    algorithm: Any = config.algorithm
    if not config.rollout.max_staleness or algorithm.importance is not None or algorithm.old_logprobs == "sampled":
        return []
    return [
        f"rollout.max_staleness {config.rollout.max_staleness}: stale samples are trained on as if the policy had just "
        "drawn them; set `algorithm.importance: {}` to weigh them"
    ]


def _updates(config: Config) -> list[str]:
    trainer: Any = config.trainer
    size = config.algorithm.group_size
    episodes = trainer.prompts_per_step * size
    if trainer.updates_per_step <= episodes:
        return []
    return [
        f"trainer.updates_per_step {trainer.updates_per_step}: a step has {episodes} episodes "
        f"({trainer.prompts_per_step} prompts_per_step × group_size {size}), so there are no more updates than that"
    ]


def _offload(config: Config) -> list[str]:
    trainer: Any = config.trainer
    algorithm: Any = config.algorithm
    missing = {
        "reference": "there is none, as algorithm.kl_coef is 0" if not algorithm.kl_coef else None,
        "critic": "there is none in this algorithm" if algorithm.baseline != "critic" else None,
    }
    return [f"trainer.offload: {part}: {why}" for part in trainer.offload if (why := missing.get(part))]
