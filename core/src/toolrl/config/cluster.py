"""The section `cluster`: the processes that train together."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from toolrl.config.frame import Frame


class ClusterConfig(Frame):
    """The processes that `torchrun -m toolrl train` starts, its ranks."""

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
