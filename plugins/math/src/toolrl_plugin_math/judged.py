"""What a reward looks at: the model's own words, never a tool's."""

from __future__ import annotations

from toolrl.types import Episode, Score
from toolrl_plugin_math.options import JudgedTextOptions


def judged_text(episode: Episode, options: JudgedTextOptions) -> str:
    """The text that the options name; empty where there is none."""
    if options.judge == "answer":
        return episode.answer or ""
    turns = episode.turns if options.judge == "all" else episode.turns[-1:]
    return "\n".join(turn.content for turn in turns)


def score(correct: bool, options: JudgedTextOptions, **metrics: float) -> Score:
    """The value of a right or wrong answer, with `correct` as metric."""
    return Score(options.correct if correct else options.wrong, metrics={"correct": float(correct), **metrics})
