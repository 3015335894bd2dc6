"""Answers compared as in Search-R1, which does it as SQuAD does: lower case, without punctuation and articles.

An answer of which nothing is left so, such as "A" or "+", is compared with what can be kept of it; else no answer at
all would be right.

What is judged is the model's own text, reasoning left out, never a tool's and never the prompt's.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.errors import RewardError
from toolrl.types import Episode, Task

OPEN, CLOSE = "<answer>", "</answer>"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(text: str) -> str:
    """Lower case, without ASCII punctuation and the articles a, an and the, white space evened out."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(said: str, golds: Sequence[str]) -> bool:
    """True where it is one of them, normalised."""
    return _compared(said) in {_compared(gold) for gold in golds}


def _compared(text: str) -> str:
    """The text normalised; with its articles where nothing else is left, and with its punctuation where not even these
    are."""
    lower = text.lower()
    return normalised(text) or " ".join(lower.translate(_PUNCTUATION).split()) or " ".join(lower.split())


def f1(said: str, golds: Sequence[str]) -> float:
    """The best F1 of common words: 2 · common / (words said + words of the gold one)."""
    return max((_f1(_compared(said).split(), _compared(gold).split()) for gold in golds), default=0.0)


def _f1(said: list[str], gold: list[str]) -> float:
    if not said or not gold:
        return float(said == gold)
    common = sum((Counter(said) & Counter(gold)).values())
    return 2 * common / (len(said) + len(gold))


def last_answer(text: str) -> str | None:
    """What stands in the last closed pair of tags, or None. Linear in the text."""
    for part in reversed(text.split(CLOSE)[:-1]):
        if OPEN in part:
            return part.partition(OPEN)[2].strip()
    return None


def said_answer(episode: Episode) -> str | None:
    """The answer that the model gave: in the last turn that has one. None where none has."""
    last = episode.turns[-1].content if episode.turns else ""
    if episode.answer is not None and last.rfind(OPEN) > last.rfind(CLOSE):
        return episode.answer  # Its closing tag ended generation, and the engine cut it off.
    for turn in reversed(episode.turns):
        found = last_answer(turn.content)
        if found is not None:
            return found
    return None


def gold_answers(task: Task) -> list[str]:
    """The answers that count: the task's answer, each of a list, or those of Search-R1's `{"target": …}`. Raises
    RewardError where there is none."""
    answer: Any = task.answer
    if isinstance(answer, Mapping):
        answer = answer.get("target")
    several = isinstance(answer, Sequence) and not isinstance(answer, str)
    golds = [str(item) for item in (answer if several else [answer]) if item is not None]
    if not golds:
        raise RewardError(
            f"task {task.id!r} has no answer to compare with",
            hint="Give its row an answer; the data set `search_r1` reads `golden_answers`.",
        )
    return golds
