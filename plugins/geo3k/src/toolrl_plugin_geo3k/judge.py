r"""Whether an answer to a geometry problem is right.

Ground truths are numbers, radicals and fractions in LaTeX, `2 \sqrt { 221 }`. What a model adds for people is taken off
both first; then math-verify compares, in a process of its own.
"""

from __future__ import annotations

from toolrl.errors import RewardError
from toolrl_plugin_math.units import question, quick_verdict
from toolrl_plugin_math.verifier import Verifier


class GeometryJudge:
    """Judges answers of one reward or tool."""

    def __init__(self, workers: int, timeout: float) -> None:
        self._verifier = Verifier(workers, timeout)

    async def right(self, answer: str, ground_truth: str) -> bool:
        r"""Whether an answer, in a `\boxed{…}` or as it is, equals the ground truth. One that takes too long is wrong.
        Raises RewardError for a ground truth that can't be read as mathematics."""
        known = quick_verdict(answer, ground_truth)
        if known is not None:
            return known
        verdict = await self._verifier.judge(*question(answer, ground_truth))
        if verdict == "bad_gold":
            raise RewardError(
                f"the ground truth {ground_truth!r:.80} can't be read as mathematics",
                hint="Give a number or LaTeX, such as `2 \\sqrt{221}`.",
            )
        return verdict == "right"

    def close(self) -> None:
        """End the worker processes."""
        self._verifier.close()
