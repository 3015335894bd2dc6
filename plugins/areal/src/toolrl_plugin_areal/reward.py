"""The reward `areal_tir`: right or wrong, and nothing for the form or for calls.

The last \\boxed{…} that the model wrote is judged by math-verify, or else the mathematics in its text. AReaL hands what
tools answered to the judge, too; `tool_output: true` does that.
"""

from __future__ import annotations

from dataclasses import replace

from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score, Turn
from toolrl_plugin_areal.options import ArealTirRewardOptions
from toolrl_plugin_math.math_reward import MathReward
from toolrl_plugin_math.options import MathOptions


class ArealTirReward:
    """(r + bias) * scaling. Judges in worker processes, so that no answer holds up the run."""

    def __init__(self, options: ArealTirRewardOptions | None, context: BuildContext) -> None:
        self._options = options = options or ArealTirRewardOptions()
        right, wrong = ((r + options.bias) * options.scaling for r in (1.0, 0.0))
        judged = MathOptions(
            boxed=False, judge="all", correct=right, wrong=wrong, timeout=options.timeout, workers=options.workers
        )
        self._math = MathReward(judged, context, mode="plain")  # as AReaL asks the library

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task whose answer can't be read as mathematics."""
        if self._options.tool_output:
            shown = (replace(it, turns=tuple(map(_with_output, it.turns))) for it in episode.trajectories)
            episode = replace(episode, trajectories=tuple(shown))
        return await self._math.score(episode)

    def close(self) -> None:
        """End the worker processes; without it they end with this object."""
        self._math.close()


def _with_output(turn: Turn) -> Turn:
    """A turn whose content is all of its text, and the answers that stand in messages behind it."""
    shown = [segment.text for segment in turn.segments]
    if all(segment.origin == "model" for segment in turn.segments):
        shown.extend(f"\n{record.result.text}\n" for record in turn.calls)
    return replace(turn, content="".join(shown))
