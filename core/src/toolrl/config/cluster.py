"""The config's section `cluster`: more processes than one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from toolrl.config.frame import Frame


class ClusterConfig(Frame):
    """Processes that a run is spread over: rollout workers, placed by Ray, and those that `torchrun -m toolrl train`
    starts, its ranks. Without either everything is done in one."""

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
    weight_transfer: Literal["object_store", "file", "broadcast"] = Field(
        "object_store",
        description="How new weights come to the workers. object_store: by Ray, once to each node; file: through the "
        "run's folder, which all nodes must then share; broadcast: from memory to memory by torch.distributed (gloo), "
        "to all workers at once.",
    )
    worker_timeout: float = Field(
        600,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which a worker that says nothing is given up and replaced; also the time that one "
        "has to start.",
    )
    worker_restarts: int = Field(
        3,
        ge=0,
        description="The run stops when a worker dies once more than this before it has finished a group again, or "
        "when so many workers died over one group.",
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
