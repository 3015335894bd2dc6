"""The reward `search_r1`: the answer between `<answer>` tags against the task's, and credit for calls that can be read.

With `step_factor` f each turn with n calls, e of which couldn't be read, gets (n − 2e) / n · f, and −f / 2 where the
first can't be read, as RLFactory means it. A turn that answers gets nothing. What RLFactory's own formulas give beyond
that intent is for `compat: rlfactory`, to compare with a published curve.

Answers are compared as in Search-R1, which does it as SQuAD does: lower case, without punctuation and articles. An
answer of which nothing is left so, such as "A" or "+", is compared with what can be kept of it. What is judged is the
model's own text, reasoning left out, never a tool's and never the prompt's.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

from toolrl.protocols import BuildContext
from toolrl.types import CallError, Episode, Score, ToolCall, Turn
from toolrl_plugin_search.golds import gold_answers
from toolrl_plugin_search.options import SearchR1Options

OPEN, CLOSE = "<answer>", "</answer>"
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
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
            reached = share if options.score == "f1" else float(right)
            value = options.correct * reached if reached > 0 else options.wrong
        metrics = {"correct": float(right), "f1": share, "answered": float(said is not None)}
        return Score(value, self._steps(episode), metrics)

    def _steps(self, episode: Episode) -> dict[int, float]:
        factor = self._options.step_factor
        if factor == 0:
            return {}
        calls = {turn.index: call_items(turn) for turn in episode.turns if not answers(turn, episode)}
        compat = self._options.compat is not None
        return {index: credit(items, compat=compat) * factor for index, items in calls.items() if items}


def credit(calls: Sequence[ToolCall | CallError], *, compat: bool = False) -> float:
    """Of a turn with calls: the share that could be read minus the share that couldn't; but a half off where the
    first couldn't, unless it is a closing tag alone. For RLFactory closing tags alone count as unreadable."""
    first = calls[0]
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
