"""The assumptions of `scale_arithmetic.py` and `simulate_scale.py`: machines, models, what a step asks for, and figures
that `scale_inputs.py` measured.

Machines and models are from data sheets and model configs, shares of them are assumed, and what is measured says how.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """Nodes with GPUs. Defaults: NVIDIA H100 SXM, from its data sheet, and what is assumed to be reached of it."""

    gpus_a_node: int = 8
    peak_flops: float = 989e12
    """Dense bfloat16 operations a second of a GPU."""
    memory_bytes_s: float = 3.35e12
    """Of a GPU's memory."""
    memory_bytes: float = 80e9
    nvlink_bytes_s: float = 450e9
    """Of a GPU within its node, each way."""
    network_bytes_s: float = 50e9
    """Of a GPU between nodes, each way: InfiniBand NDR, 400 Gbit/s for each GPU."""
    host_bytes_s: float = 12.5e9
    """Of a node between hosts by TCP, as Ray and gloo use: 100 Gbit/s Ethernet."""
    disk_bytes_s: float = 20e9
    """Of a file system that all nodes share, over all of them."""
    utilisation: float = 0.4
    """Model FLOP utilisation of updates and of prompts."""
    decode_share: float = 0.5
    """Of the memory's bandwidth, while decoding."""
    link_share: float = 0.7
    """Of a link, while collectives or copies go over it."""
    hop_s: float = 5e-6
    """Of each step of a ring."""


@dataclass(frozen=True)
class Model:
    """A dense model in bfloat16."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head_size: int
    apart: float
    """Parameters of embedding and head, which FSDP2 brings together as one block."""
    tensor_parallel: int
    """GPUs of one engine."""

    @property
    def bytes(self) -> float:
        """Of the weights in bfloat16."""
        return 2 * self.parameters

    @property
    def kv_bytes(self) -> int:
        """Of one token's keys and values."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


QWEN_7B = Model("7B", 7.62e9, 28, 4, 128, 2 * 152_064 * 3584, 1)
QWEN_32B = Model("32B", 32.8e9, 64, 8, 128, 2 * 152_064 * 5120, 4)
"""The shapes of Qwen2.5. 32B leaves no room for keys and values on one GPU of 80 GB."""


@dataclass(frozen=True)
class Load:
    """What a step asks for."""

    prompts: int = 64
    group: int = 16
    prompt_tokens: int = 512
    turns: int = 4
    turn_tokens: int = 512
    """Sampled in a turn."""
    result_tokens: int = 256
    """Of a tool's answer, after every turn but the last."""
    microbatch: int = 16_384
    """trainer.tokens_per_microbatch."""

    @property
    def episodes(self) -> int:
        return self.prompts * self.group

    @property
    def sampled(self) -> int:
        """Tokens of an episode that the engine samples."""
        return self.turns * self.turn_tokens

    @property
    def length(self) -> int:
        """Tokens of an episode."""
        return self.prompt_tokens + self.sampled + (self.turns - 1) * self.result_tokens

    @property
    def trained(self) -> int:
        """Positions that an update computes: a group's prompt once."""
        return self.prompts * (self.prompt_tokens + self.group * (self.length - self.prompt_tokens))


@dataclass(frozen=True)
class Measured:
    """What `scale_inputs.py` found on the machine that the page names; seconds are processor time."""

    bytes_an_episode: float = 101e3
    """Of an episode of 3,328 tokens, packed for the way from worker to driver."""
    unpack_s: float = 0.26e-3
    record_s: float = 3.8e-3
    credit_s: float = 0.06e-3
    """Of the driver, for one episode."""
    report_s: float = 0.72e-3
    """Of the driver, for a worker's report over Ray, the next question included."""
    order_s: float = 0.86e-3
    """Of the driver, for sending groups to a worker."""
    bring_s: float = 0.18e-3
    """Of the driver, for an episode's bytes in a report."""
    deal_512_s: float = 29e-6
    """Of the driver, to choose the least loaded of 512 workers for a group; in proportion for others."""
    pickled_bytes_an_episode: float = 78e3
    pickle_s: float = 0.22e-3
    unpickle_s: float = 0.24e-3
    """Of a rank, for one episode that ranks tell each other of."""
    publish_bytes_s: float = 0.53e9
    receive_bytes_s: float = 1.44e9
    """Of weights into the form in which they travel, and out of it, by one thread."""
    node_bytes_s: float = 0.64e9
    """Of an object from one node's store to another's by Ray, over the loopback of one machine."""
    gloo_bytes_s: float = 0.73e9
    """Of a broadcast by gloo from one process to another, over the same."""
    permits_s: float = 13_200.0
    contended_permits_s: float = 3_170.0
    """A second of a cluster's limits: where nobody waits, and where an eighth may go on at once."""
    server_calls_s: float = 85e3
    """Calls a second that the limits' server alone could see to."""
    turn_s: float = 258e-6
    """Of a worker, for a turn of an episode (`rollout_overhead.py`)."""


def read_measured(path: Path | None) -> Measured:
    """What a file of `scale_inputs.py --json` has, the rest as it stands here. Raises ValueError for another file."""
    if path is None:
        return Measured()
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path} isn't a file of `scale_inputs.py --json`: it holds no object")
    known = {field.name for field in fields(Measured)}
    return Measured(**{name: float(value) for name, value in found.items() if name in known})


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
