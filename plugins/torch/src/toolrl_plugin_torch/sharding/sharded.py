"""A trainer's parallelism over several ranks, which share the samples of a step and the weights of each model."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from toolrl.errors import DataError
from toolrl.loop.ranks import Ranks
from toolrl.protocols import AdvantageEstimator
from toolrl.types import Group
from toolrl_plugin_torch.batch import MicroBatch, Sample, pack
from toolrl_plugin_torch.checkpoints.shards import write_shards
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.optimizer import PolicyOptimizer
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.sharding.balancing import pad_passes, rank_share
from toolrl_plugin_torch.sharding.fsdp import ShardedScorer, copy_into, load_from, meta_copy, shard
from toolrl_plugin_torch.sharding.process_group import ProcessGroup
from toolrl_plugin_torch.sharding.single_process import SingleProcess


class Sharded(SingleProcess):
    """Every model by FSDP2, every rank its share of the samples. All ranks call each method together."""

    ranks: ProcessGroup

    def __init__(self, ranks: Ranks, *, cpu_offload: bool) -> None:
        assert isinstance(ranks, ProcessGroup), "several ranks are a process group"
        super().__init__(ranks)
        self._cpu_offload = cpu_offload

    def trained_scorer(self, score: TokenScorer) -> TokenScorer:
        return ShardedScorer(score, self.ranks, trained=True, cpu_offload=self._cpu_offload)

    def reference_scorer(self, score: TokenScorer, policy: PolicyModel) -> TokenScorer:
        return ShardedScorer(score, self.ranks, trained=False, cpu_offload=self._cpu_offload)

    def critic(self, make: Callable[[Any, torch.nn.Linear], Any], body: Any, head: torch.nn.Linear) -> Any:
        copied, sources = meta_copy(body, body, trained=True)
        root = make(copied, head)
        # The head is in float32 also where the body is in less.
        shard(root, sources, self.ranks, cpu_offload=self._cpu_offload, whole=[head])
        return root

    def estimator(self, estimator: AdvantageEstimator) -> AdvantageEstimator:
        return _Rank0Estimator(estimator, self.ranks)

    def micro_batches(
        self, samples: Sequence[Sample], groups: Sequence[Hashable], budget: int, *, pad_id: int, share: bool, what: str
    ) -> tuple[list[MicroBatch], Sequence[int]]:
        if self.ranks.size > 1 and any(sample.media for sample in samples):
            # A rank without images wouldn't use the layers that see, and those sum their gradients over all ranks.
            raise DataError(
                "sequences with images are trained on in one process only",
                hint="Run `toolrl train` without torchrun, or leave the images out.",
            )
        costs = [len(sample.ids) for sample in samples]
        mine = rank_share(self.ranks.rank, self.ranks.size, groups, costs, together=share)
        batches = pack([samples[index] for index in mine], budget, pad_id=pad_id, share=share)
        passes = self.ranks.largest(len(batches), what)
        return pad_passes(batches, passes, pad_id), mine

    def write_back(self, score: TokenScorer, model: Any) -> None:
        copy_into(score.model, model)

    def gather_state(self, directory: Path, step: int, optimizers: Mapping[str, PolicyOptimizer]) -> Path | None:
        self.ranks.use_device()
        return write_shards(directory, step, optimizers, self.ranks)

    def read_from(self, score: TokenScorer, model: Any) -> None:
        load_from(score.model, model)


class _Rank0Estimator:
    """Runs an `AdvantageEstimator` on rank 0 alone and broadcasts its advantages: it may draw random numbers or call a
    server."""

    def __init__(self, estimator: AdvantageEstimator, ranks: Ranks) -> None:
        self._estimator = estimator
        self._ranks = ranks

    def advantages(self, groups: Sequence[Group]) -> Any:
        """As the estimator's."""
        return self._ranks.by_first(
            lambda: [list(given) for given in self._estimator.advantages(groups)], "the plugin's advantages"
        )
