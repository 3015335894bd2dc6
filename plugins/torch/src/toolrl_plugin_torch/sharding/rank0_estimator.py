"""An advantage estimator of which all ranks get the first one's answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolrl.loop.ranks import Ranks
from toolrl.protocols import AdvantageEstimator
from toolrl.types import Group


class Rank0Estimator:
    """Runs an `AdvantageEstimator` on the first rank alone and broadcasts its advantages: it may draw random numbers or
    call a server."""

    def __init__(self, estimator: AdvantageEstimator, ranks: Ranks) -> None:
        self.label = type(estimator).__name__
        self._estimator = estimator
        self._ranks = ranks

    def advantages(self, groups: Sequence[Group]) -> Any:
        """As the estimator's."""
        return self._ranks.by_first(lambda: [list(of) for of in self._estimator.advantages(groups)], "the advantages")
