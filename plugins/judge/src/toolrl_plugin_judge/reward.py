"""The reward `llm_judge`: what a language model thinks of the response.

Where the judge can't be had, or its verdict can't be read, the episode fails with the reason and is left out of
training, unless the config gives a value for that case. It is never a silent 0.
"""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from toolrl.errors import RewardError, ToolError
from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score
from toolrl_common.http_client import without_secrets
from toolrl_plugin_judge.asker import Asked, Asker, JudgeAnswerError
from toolrl_plugin_judge.options import JudgeOptions
from toolrl_plugin_judge.prompt import JudgePrompt, judged_text

_log = logging.getLogger(__name__)


class JudgeReward:
    """Scores by asking. Started, it keeps its connections and verdicts; otherwise for each score anew."""

    def __init__(self, options: JudgeOptions, context: BuildContext) -> None:
        self._options = options
        self._name = context.name
        self._prompt = JudgePrompt(options, context.where)
        self._asker: Asker | None = None
        self._has_warned = False

    async def start(self) -> None:
        """Open the way to the judge. Raises ConfigError where another reward asks for other limits of its address."""
        self._asker = await Asker(self._options, self._prompt).__aenter__()

    async def stop(self) -> None:
        """Close it."""
        asker, self._asker = self._asker, None
        if asker is not None:
            await asker.__aexit__()

    async def score(self, episode: Episode) -> Score:
        """The verdict. Raises RewardError where there is none, DataError for a row that lacks a field."""
        fields = self._prompt.fields(episode.task, judged_text(episode, self._options))
        async with nullcontext(self._asker) if self._asker else Asker(self._options, self._prompt) as asker:
            samples = (asker.ask(fields, sample, episode.id) for sample in range(self._options.samples))
            found = await asyncio.gather(*samples, return_exceptions=True)
        asked = [it for it in found if isinstance(it, Asked)]
        failures = [it for it in found if isinstance(it, ToolError)]
        for it in found:
            if isinstance(it, BaseException) and it not in failures:
                raise it
        metrics = self._effort(asked, failures)
        if not asked:
            return self._failed(failures[0], metrics)
        combined = [self._combined([it.scores[name] for it in asked]) for name in asked[0].scores]
        scores = dict(zip(asked[0].scores, combined, strict=True))
        value = self._value(scores)
        metrics |= {f"criterion_{name}": self._share(score) for name, score in scores.items() if self._options.criteria}
        if self._options.correct_from is not None:
            metrics["correct"] = float(value >= self._options.correct_from)
        return Score(value, metrics=metrics)

    def _failed(self, error: ToolError, metrics: Mapping[str, float]) -> Score:
        if self._options.on_failure is None:
            what = "its replies can't be read" if isinstance(error, JudgeAnswerError) else "it can't be asked"
            raise RewardError(
                f"the judge gives no verdict, {what}: {error}",
                where=without_secrets(self._options.base_url),
                hint="Look at the judge; `on_failure` gives a reward for such episodes instead of leaving them out.",
            ) from error
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "reward %r: the judge gives no verdict, so `on_failure` stands for it; further ones are counted by "
                "the metric `failed`: %s",
                self._name,
                error,
            )
        return Score(self._options.on_failure, metrics={**metrics, "failed": 1.0})

    def _effort(self, asked: Sequence[Asked], failures: Sequence[ToolError]) -> dict[str, float]:
        """What it took, as metrics."""
        count, unreadable = len(asked) + len(failures), sum(isinstance(it, JudgeAnswerError) for it in failures)
        metrics = {"unreadable": unreadable / count, "cache_hits": sum(it.cached for it in asked) / count}
        seconds = [it.seconds for it in asked if not it.cached]
        if seconds:
            metrics["seconds"] = statistics.fmean(seconds)
            metrics["retries"] = statistics.fmean(it.retries for it in asked if not it.cached)
        return metrics if self._options.on_failure is None else {**metrics, "failed": 0.0}

    def _combined(self, scores: Sequence[float]) -> float:
        if self._options.combine == "median":
            return statistics.median(scores)
        if self._options.combine == "majority":
            counts = Counter(scores)
            most = max(counts.values())
            return statistics.fmean(score for score, count in counts.items() if count == most)
        return statistics.fmean(scores)

    def _value(self, scores: Mapping[str, float]) -> float:
        criteria = self._options.criteria
        if not criteria:
            return self._share(next(iter(scores.values())))
        total = sum(it.weight for it in criteria)
        return sum(it.weight * self._share(scores[it.name]) for it in criteria) / total

    def _share(self, score: float) -> float:
        low, high = self._options.scale
        return (score - low) / (high - low)
