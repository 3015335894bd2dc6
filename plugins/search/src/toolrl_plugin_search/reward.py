"""The reward `search_r1`: the answer between `<answer>` tags against the task's, and credit for calls that can be read.

With `step_factor` f each turn with n calls, e of which couldn't be read, gets (n − 2e) / n · f, and −f / 2 where the
first can't be read, as in RLFactory. A turn that answers gets nothing. What RLFactory's own formulas give beyond that
intent is for `compat: rlfactory`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from toolrl.protocols import BuildContext
from toolrl.types import CallError, Episode, Score, ToolCall, Turn
from toolrl_plugin_search.answers import contains, exact_match, f1, gold_answers, last_answer, normalised, said_answer
from toolrl_plugin_search.options import SearchR1Options

STRAY_CLOSE = "stray_close"
"""The one mistake that RLFactory's parser calls `<error>`; every other one is `<empty>`."""
MANY_CALLS = 2
"""More calls than these cost a factor in RLFactory's final reward."""


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
        if options.compat == "rlfactory":
            value = final_score(episode.model_text, golds, options.step_factor)
        elif said is None:
            value = options.missing
        else:
            reached = {"em": float(right), "f1": share, "contains": float(contains(said, golds))}[options.score]
            value = options.correct * reached if reached > 0 else options.wrong
        metrics = {"correct": float(right), "f1": share, "answered": float(said is not None)}
        return Score(value, self._steps(episode), metrics)

    def _steps(self, episode: Episode) -> dict[int, float]:
        factor = self._options.step_factor
        if factor == 0:
            return {}
        calls = {turn.index: call_items(turn) for turn in episode.turns if not answers(turn, episode)}
        return {index: self._credit(items) * factor for index, items in calls.items() if items}

    def _credit(self, calls: Sequence[ToolCall | CallError]) -> float:
        """Of a turn with calls: the share that could be read minus the share that couldn't; but a half off where the
        first couldn't, unless it is a closing tag alone. For RLFactory closing tags alone count as unreadable."""
        first, compat = calls[0], self._options.compat is not None
        if isinstance(first, CallError) and first.kind != STRAY_CLOSE:
            return -0.5
        errors = sum(isinstance(call, CallError) and (not compat or call.kind == STRAY_CLOSE) for call in calls)
        return (len(calls) - 2 * errors) / len(calls)


def answers(turn: Turn, episode: Episode) -> bool:
    """Whether a turn gives an answer, beside which its calls aren't run."""
    is_last = turn is episode.turns[-1]
    return last_answer(turn.content) is not None or (is_last and episode.stop_reason == "answer")


def call_items(turn: Turn) -> list[ToolCall | CallError]:
    """The calls of a turn, those that couldn't be read included. An answer that isn't closed is no call."""
    marks = ("<answer>", "</answer>", "\\boxed")
    return [item for item in turn.items if isinstance(item, ToolCall) or not item.raw.startswith(marks)]


def final_score(text: str, golds: Sequence[str], factor: float) -> float:
    """RLFactory's value of all that the model wrote, its faults included: 1 for the right answer plus half of the form,
    the form alone for a wrong one, and minus a factor plus half of the form for none. The form is that of all tags, in
    thinking, too; an answer in thinking is none."""
    form = factor if _alternate(text, "answer") else -factor
    if _alternate(text, "tool_call") and text.count("</tool_call>") > MANY_CALLS:
        form -= factor
    closed, end, rest = text.rpartition("</think>")
    said = last_answer(re.sub("<think>.*?</think>", "", closed + end, flags=re.DOTALL) + rest)
    if said is None:
        return -factor + 0.5 * form
    right = normalised(said) in {normalised(gold) for gold in golds}
    return 1.0 + 0.5 * form if right else form


def _alternate(text: str, tag: str) -> bool:
    """Whether opening and closing tags alternate, the first one opens and the last one closes. False for none."""
    tags = re.findall(f"</?{tag}>", text)
    return bool(tags) and tags == [f"<{tag}>", f"</{tag}>"] * (len(tags) // 2)
