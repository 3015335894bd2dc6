"""What a config asks for that several processes, or the way in which they were started, can't do."""

from __future__ import annotations

from toolrl.config.model import Config
from toolrl.errors import ConfigError


def check_ranks(config: Config, several: bool) -> None:
    """Find out before a model is loaded what ranks that share the work can't do; `several` says whether they do. Raises
    ConfigError."""
    if not several:
        return
    if config.rollout.max_staleness and not config.cluster.split:
        raise ConfigError(
            "rollout.max_staleness: where weights are spread over ranks, rollout and training take turns",
            hint="Set it to 0, have others sample by cluster.rollout_workers, or train in one process.",
        )
    if config.trainer.offload:
        raise ConfigError(
            "trainer.offload: what it moves is spread over the ranks",
            hint="Leave it out. cluster.cpu_offload keeps weights and optimizer in the host's memory.",
        )


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
