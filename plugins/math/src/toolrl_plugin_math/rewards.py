"""Rewards `exact` and `gsm8k`: text and numbers compared."""

from __future__ import annotations

import unicodedata

from toolrl.errors import RewardError
from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score
from toolrl_plugin_math.options import ExactOptions, Gsm8kRewardOptions, JudgedTextOptions
from toolrl_plugin_math.quantity import last_number, marked_number, stated_number
from toolrl_plugin_math.truth import gold_texts


class ExactReward:
    """The judged text equals the task's answer, or one of them where it is a list, after white space is evened out."""

    def __init__(self, options: ExactOptions | None, context: BuildContext) -> None:
        self._options = options or ExactOptions()

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task without an answer."""
        golds = gold_texts(episode.task)
        said = self._normal(episode.content_of(self._options.judge))
        return score(any(said == self._normal(gold) for gold in golds), self._options)

    def _normal(self, text: str) -> str:
        text = " ".join(unicodedata.normalize("NFC", text).split())
        return text.casefold() if self._options.ignore_case else text


class Gsm8kReward:
    """The number that the judged text ends on equals the task's answer."""

    def __init__(self, options: Gsm8kRewardOptions | None, context: BuildContext) -> None:
        self._options = options or Gsm8kRewardOptions()

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task whose answer isn't a number."""
        options = self._options
        gold = None if episode.task.answer is None else stated_number(episode.task.answer)
        if gold is None:
            raise RewardError(
                f"task {episode.task.id!r} has {episode.task.answer!r:.80} as answer, which holds no number",
                hint="The reward `gsm8k` needs a number, or a solution that ends with `#### N`.",
            )
        text = episode.content_of(options.judge)
        marked = marked_number(text)
        said = marked
        if said is None and options.method == "flexible":
            said = last_number(text)
        result = score(said == gold, options, answered=float(said is not None))
        if marked is not None and said != gold and options.format_score is not None:
            return Score(options.format_score, metrics=result.metrics)
        return result


def score(correct: bool, options: JudgedTextOptions, **metrics: float) -> Score:
    """The value of a right or wrong answer, with `correct` as metric."""
    return Score(options.correct if correct else options.wrong, metrics={"correct": float(correct), **metrics})
