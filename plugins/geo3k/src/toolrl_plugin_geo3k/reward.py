r"""Reward `geo3k`: (1 − format_score) · right + format_score · form.

Right: what the last `\boxed{…}` of the final turn holds equals the task's answer. Form: that turn thinks in a closed
thinking block and gives a box behind it. What tools answered is never looked at. The shares are those of verl; answers
are judged more leniently, as verl's reward (plugin `verl`) accepts no other writing of a whole number.
"""

from __future__ import annotations

from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score
from toolrl_plugin_geo3k.judge import BOXED, GeometryJudge
from toolrl_plugin_geo3k.options import Geo3kRewardOptions


class Geo3kReward:
    """Judges the final turn."""

    def __init__(self, options: Geo3kRewardOptions | None, context: BuildContext) -> None:
        self._options = options or Geo3kRewardOptions()
        self._judge = GeometryJudge(self._options.workers, self._options.timeout)

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task without an answer."""
        self._options.check_task(episode.task)
        turn = episode.turns[-1] if episode.turns else None
        content = turn.content if turn is not None else ""
        boxed = BOXED.find(content)
        right = boxed is not None and bool(boxed.strip()) and await self._judge.right(boxed, str(episode.task.answer))
        form = turn is not None and turn.reasoning is not None and boxed is not None
        share = self._options.format_score
        return Score(
            (1.0 - share) * right + share * form,
            metrics={"correct": float(right), "format": float(form), "answered": float(boxed is not None)},
        )

    def close(self) -> None:
        """End the processes that judge."""
        self._judge.close()
