"""Bytes on the GPU of each rank, phase by phase.

A rank holds weights, AdamW's state, a reference and a critic all the time, unless `trainer.offload` has them wait on
the CPU; gradients and activations come with an update; the engine holds its part while it samples, and what it keeps
while it rests. With several ranks FSDP spreads what is trained, and gathers one layer after another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toolrl_plugin_torch.plan.gpus import GIB, Gpu
from toolrl_plugin_torch.plan.passes import PassBytes
from toolrl_plugin_torch.plan.sizes import PolicySizes

STEP = 2 * 2**28
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
        """Of a micro-batch: its budget, or an episode's that is longer where the config says so."""
        return max(self.config.trainer.tokens_per_microbatch, self.config.rollout.max_episode_tokens or 0)

    @property
    def checkpointing(self) -> bool:
        return self.config.model.gradient_checkpointing in (True, "auto")

    @property
    def sharded(self) -> bool:
        return self.ranks > 1 or self.config.cluster.shard is True

    def passes(self) -> PassBytes | None:
        """Of a micro-batch; None where the model can't be computed without data."""
        config, sizes = self.config, self.sizes
        return sizes.passes(
            self.tokens,
            checkpointing=self.checkpointing,
            shares=config.trainer.share_prefix is not False and not config.deterministic and sizes.dtype.itemsize == 2,
            entropy=bool(config.algorithm.entropy_coef),
        )

    def engine_bytes(self) -> tuple[int, int, int]:
        """Of the engine beside a rank: at least, at most, and while the rank trains; 0 where it tells nothing."""
        ask = getattr(self.engine, "device_bytes", None)
        if ask is None or not self.samples:
            return 0, 0, 0
        sizes, rollout = self.sizes, self.config.rollout
        found: tuple[int, int, int] = ask(
            device=self.gpu.bytes,
            weights=sizes.weights,
            trained=sizes.trained_weights,
            token=sizes.token,
            longest=self.longest,
            episodes=min(rollout.concurrency, self.episodes),
            beside=True,
            overlap=bool(rollout.max_staleness),
        )
        return found

    @property
    def samples(self) -> bool:
        """Whether the ranks sample, and not workers of a cluster."""
        return not self.config.cluster.rollout_workers


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
    def fits(self) -> bool:
        return not self.notes and self.peak <= self.gpu.bytes

    @property
    def tight(self) -> bool:
        """So near to all memory that fragments of free memory may decide."""
        return self.peak > 0.92 * self.gpu.bytes


def plan_memory(setting: Setting, *, certain: bool = False) -> MemoryPlan:
    """The plan of a setting. `certain`: only what is there in any case, without activations and caches that grow."""
    sizes, config, share = setting.sizes, setting.config, setting.ranks if setting.sharded else 1
    held, away = _held(setting, share), _away(setting)
    least, most, resting = setting.engine_bytes()
    notes = []
    if least > most:
        notes.append(
            f"the engine may take {most / GIB:.1f} GiB, and needs {least / GIB:.1f} for its weights and one episode"
        )
    passes = None if certain else setting.passes()
    saved, peak, scoring = (passes.saved, passes.peak, passes.scoring) if passes else (0, 0, 0)
    gradients = 0 if "gradients" in away else sizes.gradients // share
    gathered = _gathered(sizes) if setting.sharded and not certain else 0
    context = 0 if certain else CONTEXT * (2 if setting.ranks > 1 else 1)
    if certain:
        most, resting = min(least, most), min(least, resting)
    if config.rollout.max_staleness and setting.samples:
        resting = most  # It samples meanwhile.

    def with_(*names: str) -> int:
        """What is always there, and these where they are held."""
        return context + sum(size for name, size in held.items() if name not in away or name in names)

    computing = gathered + gradients + resting + max(peak, STEP if "optimizer" in away else 0)
    phases = {"rollout": with_() + most, "update": with_() + computing}
    if "reference" in held:
        phases["reference"] = with_("reference") + gathered + scoring + resting
    if "critic" in held:
        phases["critic"] = with_("critic") + computing
    # Tensors are gathered, or merged with an adapter, one at a time.
    one = 0 if certain or not (setting.sharded or config.model.lora) else 2 * sizes.largest
    phases["hand-over"] = with_() + most + one
    parts = {"weights": held["weights"], "optimizer": held["optimizer"], "gradients": sizes.gradients // share}
    parts |= {**held, "activations": saved, "workspace": peak - saved + gathered, "engine": most, "context": context}
    waiting = {**held, "gradients": sizes.gradients // share}
    return MemoryPlan(
        setting.gpu, parts, phases, sum(waiting[name] for name in away & set(waiting)), passes is not None, notes
    )


def _held(setting: Setting, share: int) -> dict[str, int]:
    """By name, what one of `share` ranks holds between the phases of a step."""
    sizes, config = setting.sizes, setting.config
    weights, optimizer = sizes.weights, sizes.optimizer
    if setting.sharded:  # A shard in float32 is its own master.
        weights, optimizer = (
            weights - sizes.trained_weights + sizes.masters,
            optimizer - (sizes.masters if sizes.dtype.itemsize < 4 else 0),
        )
    held = {"weights": weights // share, "optimizer": optimizer // share}
    if config.algorithm.kl_coef:
        held["reference"] = (sizes.weights if config.model.lora is None else 0) // share
    if config.algorithm.baseline == "critic" and config.algorithm.advantage is None:
        held["critic"] = (sizes.masters if setting.sharded else sizes.trained_weights) // share
        held["critic's optimizer"] = optimizer // share
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
    size = sizes.dtype.itemsize
    return (sizes.outside + sizes.layer) * (2 * size + 4) + sizes.layer * size
