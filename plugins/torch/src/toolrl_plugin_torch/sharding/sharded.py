"""A trainer's parallelism over several ranks, which share the samples of a step and the weights of each model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from toolrl.errors import DataError
from toolrl.loop.ranks import Ranks
from toolrl_plugin_torch.batch import MicroBatch, Sample, balance, pack
from toolrl_plugin_torch.checkpoints.shards import write_shards
from toolrl_plugin_torch.checkpoints.trainer_state import Stateful
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.sharding.fsdp import (
    ShardedModel,
    ShardedScorer,
    copy_parameters,
    copy_without_weights,
    shard,
)
from toolrl_plugin_torch.sharding.process_group import ProcessGroup
from toolrl_plugin_torch.sharding.sequence_parallel import SequenceGroup
from toolrl_plugin_torch.sharding.single_process import SingleProcess


class Sharded(SingleProcess):
    """Every model by FSDP2, every rank its share of the samples. All ranks call each method together."""

    ranks: ProcessGroup

    def __init__(self, ranks: Ranks, *, cpu_offload: bool, sequence_parallel: int = 1) -> None:
        assert isinstance(ranks, ProcessGroup), "several ranks are a process group"
        super().__init__(ranks)
        self._cpu_offload = cpu_offload
        self._group = SequenceGroup(ranks, sequence_parallel) if sequence_parallel > 1 else None
        self._size = sequence_parallel
        self.counts = ranks.rank % sequence_parallel == 0

    def trained_scorer(self, policy: PolicyModel) -> TokenScorer:
        if policy.shards is None:  # The policy wasn't loaded for several ranks.
            policy.shards = self._sharded(policy, trained=True)
        self._policy = policy
        return ShardedScorer(policy.shards, self._group)

    def reference_scorer(self, policy: PolicyModel, *, follows: bool) -> TokenScorer:
        reference = self._sharded(policy, trained=False)
        reference.copy_from(policy.live)
        return ShardedScorer(reference, self._group)

    def critic(self, make: Callable[[Any, torch.nn.Linear], Any], body: Any, head: torch.nn.Linear) -> Any:
        policy = self._policy
        name = next(name for name, module in policy.live.named_modules() if module is body)
        copied = copy_without_weights(policy.model.get_submodule(name), policy.dtype, trained=True)
        root = make(copied, head)
        # The head is in float32 also where the body is in less.
        shard(root, policy.dtype, self.ranks, cpu_offload=self._cpu_offload, whole=[head])
        copy_parameters(body, copied)
        return root

    def _sharded(self, policy: PolicyModel, *, trained: bool) -> ShardedModel:
        return ShardedModel(policy.model, policy.dtype, self.ranks, trained=trained, cpu_offload=self._cpu_offload)

    def micro_batches(
        self, samples: Sequence[Sample], groups: Sequence[Hashable], budget: int, *, pad_id: int, share: bool, what: str
    ) -> tuple[list[MicroBatch], Sequence[int]]:
        if self.ranks.size > 1 and any(sample.media for sample in samples):
            # A rank without images wouldn't use the layers that see, and those sum their gradients over all ranks.
            raise DataError(
                "sequences with images are trained on in one process only",
                hint="Run `toolrl train` without torchrun, or leave the images out.",
            )
        parts, own = self.ranks.size // self._size, self.ranks.rank // self._size
        shares = balance(groups, [len(sample.ids) for sample in samples], parts, together=share)
        mine = shares[own] if own < len(shares) else []
        batches = pack([samples[index] for index in mine], budget, pad_id=pad_id, share=share)
        # All ranks make each pass together. The second token of an empty batch is scored, so that every weight is used.
        nothing = Sample([pad_id, pad_id], [0, 1], [0.0, 0.0], [0.0, 0.0])
        empty = replace(pack([nothing], 2)[0], samples=())
        return batches + [empty] * (self.ranks.largest(len(batches), what) - len(batches)), mine

    def gather_state(
        self, directory: Path, step: int, states: Mapping[str, Stateful], policy: PolicyModel
    ) -> Path | None:
        self.ranks.use_device()
        return write_shards(directory, step, states, self.ranks, policy.save_trained)
