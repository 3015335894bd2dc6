"""The reward `search_r1`: the answer between `<answer>` tags against the task's, and credit for calls that can be read.

With `step_factor` f each turn with n calls, e of which couldn't be read, gets (n − 2e) / n · f, and −f / 2 where the
first can't be read, as RLFactory means it. A turn that answers gets nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolrl.protocols import BuildContext
from toolrl.types import CallError, Episode, Score, ToolCall, Turn
from toolrl_plugin_search.answers import exact_match, f1, gold_answers, last_answer, said_answer
from toolrl_plugin_search.options import SearchR1Options

STRAY_CLOSE = "stray_close"
"""The one mistake that RLFactory's parser calls `<error>`; every other one is `<empty>`."""


class SearchR1Reward:
    """Scores answers. Metrics: `correct` (exact match), `f1`, `answered`."""

    def __init__(self, options: SearchR1Options | None, context: BuildContext) -> None:
        self._options = options or SearchR1Options()

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task without an answer."""
        options = self._options
        golds, said = gold_answers(episode.task), said_answer(episode)
        right = said is not None and exact_match(said, golds)
        share = f1(said, golds) if said is not None else 0.0
        if said is None:
            value = options.missing
        else:
            reached = share if options.score == "f1" else float(right)
            value = options.correct * reached if reached > 0 else options.wrong
        metrics = {"correct": float(right), "f1": share, "answered": float(said is not None)}
        return Score(value, self._steps(episode), metrics)

    def _steps(self, episode: Episode) -> dict[int, float]:
        factor = self._options.step_factor
        if factor == 0:
            return {}
        calls = {turn.index: call_items(turn) for turn in episode.turns if not answers(turn, episode)}
        return {index: credit(items) * factor for index, items in calls.items() if items}


def credit(calls: Sequence[ToolCall | CallError]) -> float:
    """Of a turn with calls: the share that could be read minus the share that couldn't; but a half off where the first
    couldn't, unless it is a closing tag alone."""
    if isinstance(calls[0], CallError) and calls[0].kind != STRAY_CLOSE:
        return -0.5
    errors = sum(isinstance(call, CallError) for call in calls)
    return (len(calls) - 2 * errors) / len(calls)


def answers(turn: Turn, episode: Episode) -> bool:
    """Whether a turn gives an answer, beside which its calls aren't run."""
    is_last = turn is episode.turns[-1]
    return last_answer(turn.content) is not None or (is_last and episode.stop_reason == "answer")


def call_items(turn: Turn) -> list[ToolCall | CallError]:
    """The calls of a turn, those that couldn't be read included. An answer that isn't closed is no call."""
    marks = ("<answer>", "</answer>", "\\boxed")
    return [item for item in turn.items if isinstance(item, ToolCall) or not item.raw.startswith(marks)]
