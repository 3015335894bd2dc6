"""What a trainer does otherwise where several ranks train: kept apart, so that one process imports none of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from toolrl.errors import DataError
from toolrl.loop.ranks import Ranks
from toolrl.protocols import AdvantageEstimator
from toolrl.types import Group
from toolrl_plugin_torch.batch import Sample
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.objective.loss import LossStatistics

if TYPE_CHECKING:
    from toolrl_plugin_torch.sharding.process_group import ProcessGroup


def sharded_scorer(score: TokenScorer, ranks: Ranks, *, trained: bool, cpu_offload: bool) -> TokenScorer:
    """A scorer over a copy of the model that is spread over the ranks; with `trained` for an optimizer."""
    from toolrl_plugin_torch.sharding.sharded import ShardedScorer

    group: ProcessGroup = ranks  # type: ignore[assignment]
    return ShardedScorer(score, group, trained=trained, cpu_offload=cpu_offload)


def sharded_values(
    body: Any, head: torch.nn.Linear, values: Callable[..., Any], ranks: Ranks, *, cpu_offload: bool
) -> Any:
    """A critic made of a copy of this body and of this head, spread over the ranks."""
    from toolrl_plugin_torch.sharding.sharded import hollow, spread

    group: ProcessGroup = ranks  # type: ignore[assignment]
    hollow_body, sources = hollow(body, body, trained=True)
    root = values(hollow_body, head)
    # The head is of float32 also where the body is of less.
    spread(root, sources, group, cpu_offload=cpu_offload, apart=[root.head])
    return root


def take_values(values: Any, state: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
    """Take each rank's part of a whole critic's weights."""
    from toolrl_plugin_torch.sharding.sharded import put

    for name, parameter in values.named_parameters():
        part, _, rest = name.partition(".")
        if rest in state[part]:  # What isn't trained is the policy's.
            put(state[part][rest], parameter)


def let_go(root: Any) -> None:
    """After a pass over a module that is spread over the ranks."""
    from toolrl_plugin_torch.sharding.sharded import let_go as let

    let(root)


def write_whole(score: TokenScorer, model: Any) -> None:
    """Bring the weights that are spread over the ranks together in a whole model, for engines and checkpoints."""
    from toolrl_plugin_torch.sharding.sharded import copy_into

    copy_into(score.model, model)


def take_whole(score: TokenScorer, model: Any) -> None:
    """Take each rank's part of a whole model's weights."""
    from toolrl_plugin_torch.sharding.sharded import load_from

    load_from(score.model, model)


class FirstRanksEstimator:
    """An `AdvantageEstimator` that is asked on the first rank only: a plugin's may draw lots or ask a server, and all
    ranks must come to the same."""

    def __init__(self, estimator: AdvantageEstimator, ranks: Ranks) -> None:
        self._estimator = estimator
        self._ranks = ranks

    def advantages(self, groups: Sequence[Group]) -> Any:
        """As the estimator's."""
        return self._ranks.by_first(
            lambda: [list(given) for given in self._estimator.advantages(groups)], "the plugin's advantages"
        )


def add_up(statistics: Sequence[LossStatistics], ranks: Ranks, what: str) -> list[LossStatistics]:
    """Each of these with those of the other ranks in it, the same on all."""
    if not ranks.several:
        return list(statistics)
    totals = [LossStatistics() for _ in statistics]
    for parts in ranks.gather([_on_cpu(one) for one in statistics], what):
        for total, part in zip(totals, parts, strict=True):
            total.add(part)
    return totals


def _on_cpu(statistics: LossStatistics) -> LossStatistics:
    return LossStatistics(
        *({name: value.cpu() for name, value in part.items()} for part in (
            statistics.means, statistics.sums, statistics.maxima
        ))
    )  # fmt: skip


def refuse_media(samples: Sequence[Sample], ranks: Ranks) -> None:
    """Raise DataError for samples with images where several ranks train: one without images wouldn't use the layers
    that see, and those sum their gradients over all ranks."""
    if ranks.size > 1 and any(sample.media for sample in samples):
        raise DataError(
            "sequences with images are trained on in one process only",
            hint="Run `toolrl train` without torchrun, or leave the images out.",
        )
