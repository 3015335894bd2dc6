"""Rejects settings that several processes, or the way in which they were started, don't support."""

from __future__ import annotations

from functools import partial

from toolrl.config.model import Config
from toolrl.errors import ConfigError


def refused_by_train(config: Config) -> list[str]:
    """A line for each setting that `toolrl train` alone rejects."""
    cluster = config.cluster
    checks = [partial(check_ranks, config, cluster.trainer_workers > 1 or cluster.shard is True)]
    if cluster.trainer_workers:
        checks.append(partial(check_devices, config))
    lines = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            lines.append(f"{error.message}. {error.hint} `toolrl train` refuses it")
    return lines


def check_ranks(config: Config, distributed: bool) -> None:
    """Reject, before a model is loaded, settings that sharded weights don't support. Raises ConfigError."""
    if not distributed:
        return
    if config.rollout.max_staleness and not config.cluster.split:
        raise ConfigError(
            "rollout.max_staleness: where weights are spread over ranks, rollout and training take turns",
            hint="Set it to 0, have others sample by cluster.rollout_workers, or train in one process.",
        )
    config.trainer.check_sharded()


def check_torchrun(config: Config) -> None:
    """Raises ConfigError where the config has Ray place what torchrun has started already."""
    if config.cluster.trainer_workers:
        raise ConfigError(
            f"cluster.trainer_workers: {config.cluster.trainer_workers} are to be placed by Ray, and torchrun has "
            "started ranks already",
            hint="Run `toolrl train` without torchrun, or set it to 0.",
        )


def check_devices(config: Config) -> None:
    """Raises ConfigError where trainer workers are to compute on devices that Ray doesn't lend them, or are lent some
    that they don't use."""
    gpus = config.cluster.trainer_gpus
    if config.device.startswith("cuda") and not gpus:
        raise ConfigError(
            f"cluster.trainer_gpus: device is {config.device!r}, and Ray lends the trainer workers no GPU",
            hint="Set cluster.trainer_gpus to 1; or leave device out to train on the CPU.",
        )
    if config.device == "cpu" and gpus:
        raise ConfigError(
            f"cluster.trainer_gpus: device is 'cpu', and Ray lends each trainer worker {gpus} GPU"
            f"{'s' if gpus > 1 else ''}",
            hint="Set cluster.trainer_gpus to 0; or leave device out to train on the GPUs.",
        )
