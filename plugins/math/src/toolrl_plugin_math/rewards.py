"""Rewards `exact` and `gsm8k`: text and numbers compared."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score, Task
from toolrl_plugin_math.options import ExactOptions, Gsm8kRewardOptions, JudgedTextOptions
from toolrl_plugin_math.quantity import last_number, marked, true_numbers
from toolrl_plugin_math.truth import MAX_DIGITS, gold_number, gold_texts, gold_values

_PLAIN_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
"""Python reads more as a number, such as `1_0`."""


class ExactReward:
    """The judged text equals the task's answer, or one of them where it is a list, after white space is evened out."""

    def __init__(self, options: ExactOptions | None, context: BuildContext) -> None:
        self._options = options or ExactOptions()

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task without an answer."""
        said = self._normal(episode.content_of(self._options.judge))
        right = any(said == self._normal(gold) for gold in gold_texts(episode.task))
        return score(right or self._is_number(said, episode.task), self._options)

    def _is_number(self, said: str, task: Task) -> bool:
        """Whether the text is a plain number that equals a ground truth that is a number: `72.0` and 72."""
        if len(said) > MAX_DIGITS or not _PLAIN_NUMBER.fullmatch(said):
            return False
        number = Decimal(said)
        return any(number == gold_number(gold) for gold in gold_values(task))

    def _normal(self, text: str) -> str:
        text = " ".join(unicodedata.normalize("NFC", text).split())
        return text.casefold() if self._options.ignore_case else text


class Gsm8kReward:
    """The number that the judged text ends on equals the task's answer."""

    def __init__(self, options: Gsm8kRewardOptions | None, context: BuildContext) -> None:
        self._options = options or Gsm8kRewardOptions()

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a task whose answer doesn't state one number."""
        options = self._options
        golds = true_numbers(episode.task)
        text = episode.content_of(options.judge)
        stated = marked(text)
        said = None if stated is None else stated.number
        if stated is None and options.method == "flexible":
            said = last_number(text)
        result = score(said in golds, options, answered=float(said is not None))
        if stated is not None and said is not None and said not in golds and options.format_score is not None:
            return Score(options.format_score, metrics=result.metrics)
        return result


def score(correct: bool, options: JudgedTextOptions, **metrics: float) -> Score:
    """The value of a right or wrong answer, with `correct` as metric."""
    return Score(options.correct if correct else options.wrong, metrics={"correct": float(correct), **metrics})
