r"""Reward `math`: the answer is mathematically the same as the task's, as the math-verify library sees it.

Numbers, fractions, LaTeX, sets, intervals, equations. A ground truth may be a plain number, LaTeX with or without `$`,
or a `\boxed{…}`; where it is a list, any of its entries counts.
"""

from __future__ import annotations

from toolrl.errors import RewardError
from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score
from toolrl_plugin_math import verifier
from toolrl_plugin_math.options import MathOptions
from toolrl_plugin_math.rewards import score
from toolrl_plugin_math.stated import stated_answer
from toolrl_plugin_math.truth import gold_texts


class MathReward:
    """Judges in worker processes, so that no answer holds up the run."""

    def __init__(self, options: MathOptions | None, context: BuildContext, *, mode: verifier.Mode = "guarded") -> None:
        """`mode` is for rewards that reproduce another framework's score by math-verify alone: `plain`."""
        self._options = options or MathOptions()
        self._lists = mode == "guarded"
        self._verifier = verifier.Verifier(self._options.workers, self._options.timeout, mode)

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task whose answer can't be read as mathematics."""
        golds = gold_texts(episode.task)
        content = episode.content_of(self._options.judge)
        text = stated_answer(content, boxed_only=self._options.boxed, lists=self._lists)
        if text is None:
            return score(False, self._options, answered=0.0, timeout=0.0)
        verdict = await self._verifier.judge(golds, text)
        if verdict == "bad_gold":
            raise RewardError(
                f"task {episode.task.id!r} has {episode.task.answer!r:.80} as answer, which math-verify can't read",
                hint="Give the answer as a number or as LaTeX.",
            )
        timeout = float(verdict == "timeout")
        return score(verdict == "right", self._options, answered=1.0, timeout=timeout)

    def close(self) -> None:
        """End the worker processes; without it they end with this object."""
        self._verifier.close()


def check() -> str:
    """For `toolrl doctor`: judges one answer in a worker."""
    process = verifier.worker()
    try:
        verdict = verifier.judge(process, ["1/2"], "\\boxed{\\frac{2}{4}}", 30.0)
    finally:
        process.close()
    if verdict != "right":
        raise RuntimeError(f"2/4 against 1/2 was judged {verdict!r}")
    return "math-verify judges 2/4 equal to 1/2"
