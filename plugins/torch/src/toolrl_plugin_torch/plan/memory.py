"""Bytes on the GPU of each rank, phase by phase.

A rank holds weights, AdamW's state, a reference and a critic all the time, unless `trainer.offload` has them wait on
the CPU; gradients and activations come with an update; the engine holds its part while it samples, and what it keeps
while it rests. With several ranks FSDP spreads what is trained, and gathers one layer after another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch

from toolrl.errors import ConfigError
from toolrl_plugin_torch.optimizer import BUCKET
from toolrl_plugin_torch.plan.passes import PassBytes
from toolrl_plugin_torch.plan.sizes import PolicySizes
from toolrl_plugin_torch.prefixes.sharing import reason_by_config

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; speeds are the makers' (dense bfloat16), None where they aren't known."""

    name: str
    bytes: int
    """All memory, as torch reports it."""
    flops: float | None = None
    """A second."""
    bandwidth: float | None = None
    """Of its memory, in bytes a second."""


GPUS = {
    "h200": Gpu("H200", int(139.8 * GIB), 989e12, 4.8e12),
    "h100": Gpu("H100", int(79.1 * GIB), 989e12, 3.35e12),
    "a100-80": Gpu("A100 80 GB", int(79.2 * GIB), 312e12, 2.04e12),
    "l40s": Gpu("L40S", int(44.4 * GIB), 362e12, 0.864e12),
}
_FORM = re.compile(r"(?P<kind>[^:]+?)(:(?P<count>[1-9]\d*))?")


def parse_gpu(text: str) -> tuple[Gpu, int]:
    """`h200`, or GiB of memory, and how many a node has: `h200:8`, `48:2`. Raises ConfigError."""
    found = _FORM.fullmatch(text.strip().lower())
    kind = found["kind"] if found else ""
    gpu = GPUS.get(kind)
    if gpu is None and re.fullmatch(r"\d+(\.\d+)?", kind) and float(kind) > 0:
        gpu = Gpu(f"GPU of {kind} GiB", int(float(kind) * GIB))
    if gpu is None or found is None:
        raise ConfigError(
            f"--gpu: {text!r} is no GPU that a plan knows",
            hint=f"Give {', '.join(GPUS)} or a number of GiB, and :N for N of them in a node, such as h200:8 or 48:2.",
        )
    return gpu, int(found["count"] or 1)


def gpu_here(device: torch.device) -> Gpu:
    """The CUDA device that this process computes on."""
    properties = torch.cuda.get_device_properties(device)
    known = next((gpu for key, gpu in GPUS.items() if key.partition("-")[0] in properties.name.lower()), None)
    speeds = (known.flops, known.bandwidth) if known else (None, None)
    return Gpu(properties.name, properties.total_memory, *speeds)


STEP = 2 * BUCKET
"""AdamW's buckets on the GPU where its state waits on the CPU."""
CONTEXT = int(0.6 * GIB)
"""CUDA's context, cuBLAS' workspaces and the allocator's rounding; with several ranks NCCL's buffers as much again."""


@dataclass(frozen=True)
class Setting:
    """What a plan is made for."""

    config: Any
    """A `toolrl.config.model.Config` with this plugin's sections."""
    engine: Any
    """The engine's checked options."""
    sizes: PolicySizes
    gpu: Gpu
    ranks: int = 1
    teachers: int = 0
    """Bytes of the weights of teachers that are embedded."""

    @property
    def sampled(self) -> int:
        """The most tokens that an episode samples."""
        rollout = self.config.rollout
        turns = max(environment.max_turns for environment in self.config.environments.values())
        return int(min(turns * rollout.max_turn_tokens, self.longest))

    @property
    def longest(self) -> int:
        """The most tokens of an episode."""
        return int(self.config.rollout.max_episode_tokens or self.sizes.positions)

    @property
    def episodes(self) -> int:
        """Episodes of a step, of each rank."""
        config = self.config
        return int(-(-config.trainer.prompts_per_step * config.algorithm.group_size // self.ranks))

    @property
    def tokens(self) -> int:
        """Of a micro-batch, on each of the ranks that share it: its budget, or an episode's that is longer where the
        config says so."""
        trainer = self.config.trainer
        most = max(trainer.tokens_per_microbatch, self.config.rollout.max_episode_tokens or 0)
        return int(-(-most // trainer.sequence_parallel))

    @property
    def shares(self) -> bool:
        """Whether updates compute common beginnings once, as far as the config tells."""
        config, sizes = self.config, self.sizes
        wanted = config.trainer.share_prefix is not False and not config.deterministic
        return wanted and sizes.dtype.itemsize == 2 and reason_by_config(sizes.model.config) is None

    @property
    def checkpointing(self) -> bool:
        return self.config.model.gradient_checkpointing in (True, "auto")

    @property
    def sharded(self) -> bool:
        return self.ranks > 1 or self.config.cluster.shard is True

    @property
    def overlaps(self) -> bool:
        """Whether the engine beside a rank samples while the rank trains."""
        return bool(self.config.rollout.max_staleness) and not self.config.cluster.rollout_workers

    def passes(self) -> PassBytes | None:
        """Of a micro-batch; None where the model can't be computed without data."""
        entropy = bool(self.config.algorithm.entropy_coef)
        return self.sizes.passes(self.tokens, checkpointing=self.checkpointing, shares=self.shares, entropy=entropy)

    def engine_bytes(self, *, certain: bool = False) -> tuple[int, int, int]:
        """Of the engine beside a rank: at least, at most, and while the rank trains; 0 where its options don't say.
        `certain`: with a cache of any size."""
        ask = getattr(self.engine, "device_bytes", None)
        if ask is None or self.config.cluster.rollout_workers:
            return 0, 0, 0
        sizes, episodes = self.sizes, min(self.config.rollout.concurrency, self.episodes)
        model = {"weights": sizes.weights, "trained": sizes.trained_weights, "token": 0 if certain else sizes.token}
        load = {"device": self.gpu.bytes, "longest": self.longest, "episodes": episodes, "overlap": self.overlaps}
        least, most, resting = ask(**model, **load)
        return (least, min(least, most), resting if resting == most else 0) if certain else (least, most, resting)


@dataclass
class MemoryPlan:
    """Bytes on the GPU of each rank."""

    gpu: Gpu
    parts: dict[str, int]
    """All that is there at some time."""
    phases: dict[str, int]
    """The most in each phase of a step."""
    host: int
    """What waits in the host's memory."""
    measured: bool
    """Whether activations are known."""
    notes: list[str] = field(default_factory=list)
    """What makes it fit no device."""

    @property
    def peak(self) -> int:
        return max(self.phases.values())

    @property
    def verdict(self) -> str:
        """yes, no, tight (fragments of free memory may decide), or unknown (activations come on top)."""
        if self.notes or self.peak > self.gpu.bytes:
            return "no"
        return "unknown" if not self.measured else "tight" if self.peak > 0.92 * self.gpu.bytes else "yes"


def plan_memory(setting: Setting, *, certain: bool = False) -> MemoryPlan:
    """The plan of a setting. `certain`: only what is there in any case, without activations and caches that grow."""
    sizes, share = setting.sizes, setting.ranks if setting.sharded else 1
    held, away = _held(setting, share), _away(setting)
    least, most, resting = setting.engine_bytes(certain=certain)
    passes = None if certain else setting.passes()
    saved, peak = (passes.saved, passes.peak) if passes else (0, 0)
    gradients = sizes.gradients // share
    gathered = context = one = 0
    if not certain:
        gathered = _gathered(sizes) if setting.sharded else 0
        context = CONTEXT * (2 if setting.ranks > 1 else 1)
        # Tensors are gathered, or merged with an adapter, one at a time.
        one = 2 * sizes.largest if setting.sharded or setting.config.model.lora else 0
    always = context + sum(size for name, size in held.items() if name not in away)
    peak_or_step = gathered + max(peak, STEP if "optimizer" in away and not certain else 0)
    summed = 0 if "gradients" in away else gradients
    # The pass of a reference takes less than that of an update, also where it comes to the GPU for it.
    phases = {"rollout": always + most, "update": always + resting + summed + peak_or_step}
    if "critic" in held:
        brought = held["critic"] if "critic" in away else 0
        phases["critic"] = always + resting + brought + int(summed * sizes.body) + peak_or_step
    phases["hand-over"] = always + most + one
    parts = {**held, "gradients": gradients, "activations": saved, "workspace": peak - saved + gathered}
    host = sum(parts[name] for name in away if name in parts)
    notes = []
    if least > most:
        needs = f"{least / GIB:.1f} for its weights and one episode"
        notes.append(f"the engine may take {most / GIB:.1f} GiB, and needs {needs}")
    parts |= {"engine": most, "context": context}
    return MemoryPlan(setting.gpu, parts, phases, host, passes is not None, notes)


def _held(setting: Setting, share: int) -> dict[str, int]:
    """By name, what one of `share` ranks holds between the phases of a step."""
    sizes, config = setting.sizes, setting.config
    weights, optimizer = sizes.weights, sizes.optimizer
    if setting.sharded and sizes.dtype.itemsize < 4:  # A shard in float32 is its own master.
        weights, optimizer = weights - sizes.trained_weights + sizes.masters, optimizer - sizes.masters
    held = {"weights": weights // share, "optimizer": optimizer // share}
    if config.algorithm.has_reference:
        reference = config.algorithm.reference
        own = sizes.trained_weights if reference and reference.sync_every else 0
        held["reference"] = (sizes.weights if config.model.lora is None else own) // share
    if setting.teachers:
        held["teachers"] = setting.teachers
    if config.algorithm.baseline == "critic" and config.algorithm.advantage is None:
        trained = sizes.masters if setting.sharded else sizes.trained_weights
        held["critic"] = int(trained * sizes.body) // share
        held["critic's optimizer"] = int(optimizer * sizes.body) // share
    return held


def _away(setting: Setting) -> set[str]:
    """What waits in the host's memory between its uses."""
    config = setting.config
    if config.cluster.cpu_offload and setting.sharded:
        return {"weights", "optimizer", "gradients", "reference", "critic", "critic's optimizer"}
    offload = set(config.trainer.offload)
    return offload | ({"critic's optimizer"} if "optimizer" in offload else set())


def _gathered(sizes: PolicySizes) -> int:
    """What FSDP brings together on a rank: embedding and head all the while and a layer, each with its gradient, which
    is summed in float32; and the layer that comes next."""
    size: int = sizes.dtype.itemsize
    return (sizes.outside + sizes.layer) * (2 * size + 4) + sizes.layer * size
