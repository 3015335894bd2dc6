"""A trainer's parallelism in one process, which computes every sample on whole models.

`sharding.sharded` has the same methods for several processes. Trainers call these methods and know nothing else of
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from toolrl.loop.ranks import Ranks
from toolrl_plugin_torch.adapters.lora import copy_sharing_frozen
from toolrl_plugin_torch.batch import MicroBatch, Sample, pack
from toolrl_plugin_torch.checkpoints.trainer_state import Stateful
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.policy import PolicyModel


class SingleProcess:
    """Whole models, all samples."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self.counts = True
        """Whether sums over ranks count this one's micro-batches; of ranks that compute the same, one counts."""

    def trained_scorer(self, policy: PolicyModel) -> TokenScorer:
        """A scorer over the model whose weights the optimizer updates."""
        return TokenScorer(policy.model)

    def reference_scorer(self, policy: PolicyModel, *, follows: bool) -> TokenScorer:
        """A scorer over the policy as it is now. It shares the weights that an adapter leaves alone, and with `follows`
        has all others, under the policy's names."""
        adapter = policy.adapter
        reference = copy_sharing_frozen(policy.model) if adapter is None else adapter.frozen_copy(whole=follows)
        return TokenScorer(reference.eval().requires_grad_(False))

    def critic(self, make: Callable[[Any, torch.nn.Linear], Any], body: Any, head: torch.nn.Linear) -> Any:
        """`make` of a copy of the policy's body, which is trained, and of the head."""
        return make(copy_sharing_frozen(body), head)

    def micro_batches(
        self, samples: Sequence[Sample], groups: Sequence[Hashable], budget: int, *, pad_id: int, share: bool, what: str
    ) -> tuple[list[MicroBatch], Sequence[int]]:
        """This rank's micro-batches, as many as any rank has, and the positions of its samples.

        `groups` names the group of each sample; with `share` a group's common beginning is computed once. `what` names
        this point of the run, for errors."""
        return pack(samples, budget, pad_id=pad_id, share=share), range(len(samples))

    def gather_state(
        self, directory: Path, step: int, states: Mapping[str, Stateful], policy: PolicyModel
    ) -> Path | None:
        """The folder in `directory` where all ranks wrote these states, and the model; None where one process
        holds it all. Raises CheckpointError."""
        return None
