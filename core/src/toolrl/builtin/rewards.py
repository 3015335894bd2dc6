"""Rewards for the form of a turn alone."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from toolrl.protocols import BuildContext
from toolrl.types import CallError, Episode, Score, ToolCall


class FormatRewardOptions(BaseModel):
    """Options of the reward `format`."""

    model_config = ConfigDict(extra="forbid")

    no_calls: float = Field(1.0, description="The reward of an episode in which nothing looked like a call.")
    recovered: float = Field(
        1.0, ge=0, le=1, description="The value of a call that the parser had to mend (its option `repair`)."
    )


class FormatReward:
    """Well-formedness: the share of what looked like a call that could be read as one, from 0 to 1.

    Calls of unknown tools and calls whose arguments don't fit count as well-formed: the model wrote the syntax right.
    """

    def __init__(self, options: FormatRewardOptions | None = None, context: BuildContext | None = None) -> None:
        self._options = options or FormatRewardOptions()

    async def score(self, episode: Episode) -> Score:
        """The value, with the counts as metrics."""
        items = [item for turn in episode.turns for item in turn.items]
        errors = sum(isinstance(item, CallError) for item in items)
        recovered = sum(isinstance(item, ToolCall) and item.recovered for item in items)
        metrics = {"malformed": float(errors), "recovered": float(recovered)}
        if not items:
            return Score(self._options.no_calls, metrics=metrics)
        well_formed = len(items) - errors - recovered * (1.0 - self._options.recovered)
        return Score(well_formed / len(items), metrics=metrics)
