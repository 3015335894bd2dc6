"""The config's section `cluster`: more processes than one."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from toolrl.config.frame import ComponentUse, Frame, OldNames, Use


class ClusterConfig(Frame):
    """Processes that a run is spread over: rollout workers and trainer workers, placed by a cluster component (Ray); in
    place of the latter the ranks that `torchrun -m toolrl train` starts. Without any of these there is one process."""

    old_names: ClassVar[OldNames] = {"weight_transfer": None, "placement": None}

    use: Use | None = Field(
        None,
        description="The component that places workers and holds cluster-wide limits; needed where there are "
        "rollout_workers or trainer_workers, or a tool asks for `limit_scope: cluster`. None for `ray`.",
    )
    address: str | None = Field(
        None,
        min_length=1,
        description="Of a running Ray cluster: `auto` for the one on this machine, or HOST:PORT. None for that of "
        "RAY_ADDRESS; where that isn't set either, one is started here for the run.",
    )
    rollout_workers: int = Field(
        0,
        ge=0,
        description="Processes that sample episodes, each with tools and an engine of its own; placed by Ray. 0 for "
        "none. rollout.concurrency then holds for each of them.",
    )
    worker_cpus: float = Field(1, ge=0, allow_inf_nan=False, description="CPUs that Ray sets aside for each worker.")
    worker_gpus: float = Field(
        0,
        ge=0,
        allow_inf_nan=False,
        description="GPUs that Ray lends each worker; a share below 1 lets several workers have one. With 0 the "
        "workers' engines compute on the CPU.",
    )
    worker_resources: dict[str, float] = Field(
        default_factory=dict, description="Further resources that a worker's node must have, by the names Ray knows."
    )
    weight_backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto",
        description="How new weights go to rollout workers whose engine is vLLM. auto: nccl where trainer and workers "
        "have GPUs of their own, else gloo.",
    )
    worker_timeout: float = Field(
        600,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which a rollout worker that doesn't answer is replaced; also the time that a worker "
        "of either kind has to start.",
    )
    worker_restarts: int = Field(
        3,
        ge=0,
        description="The run stops when a worker dies once more than this before it has finished a group again, or "
        "when so many workers died over one group.",
    )
    trainer_workers: int = Field(
        0,
        ge=0,
        description="Processes that train one model together, placed by Ray; the first on the node of the command. 0 "
        "to train in the command's own process, or in those that torchrun starts.",
    )
    trainer_cpus: float = Field(
        1, ge=0, allow_inf_nan=False, description="CPUs that Ray sets aside for each trainer worker."
    )
    trainer_gpus: int = Field(
        0, ge=0, description="GPUs that Ray lends each trainer worker, which computes on the first; with 0 on the CPU."
    )
    trainer_restarts: int = Field(
        3,
        ge=0,
        description="When a trainer worker dies, all of them start again from the last checkpoint. The run stops when "
        "that happens once more than this without a new checkpoint in between.",
    )
    shard: Literal["auto", True] = Field(
        "auto",
        description="Spread weights, gradients and the optimizer's state over the ranks by FSDP2. auto: where there "
        "are several; true: with one rank too, which takes the same path and saves no memory.",
    )
    cpu_offload: bool = Field(
        False,
        description="Keep the shards in the host's memory and bring them to the device layer by layer. Slower; for "
        "models whose optimizer state doesn't fit the devices.",
    )
    rank_timeout: float = Field(
        1800.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that a rank waits for the others before it ends the run with an error. Longer than the "
        "slowest share of a rollout.",
    )

    @property
    def component(self) -> ComponentUse:
        """The cluster component."""
        return self.use or ComponentUse(use="ray")

    @property
    def split(self) -> bool:
        """Whether rollout workers sample, and the processes that train only train."""
        return self.rollout_workers > 0
