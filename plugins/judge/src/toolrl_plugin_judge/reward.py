"""The reward `llm_judge`: what a language model thinks of the response.

Where the judge can't be had, or its verdict can't be read, the episode fails with the reason and is left out of
training, unless the config gives a value for that case. It is never a silent 0.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext

from toolrl.errors import RewardError, ToolError
from toolrl.protocols import BuildContext
from toolrl.types import Episode, Score
from toolrl_common.http_client import without_secrets
from toolrl_plugin_judge.asker import Asker, JudgeAnswerError
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
        """The verdict. Raises RewardError where there is none."""
        fields = self._prompt.fields(episode.task, judged_text(episode, self._options))
        try:
            async with nullcontext(self._asker) if self._asker else Asker(self._options, self._prompt) as asker:
                score, metrics = await asker.ask(fields, episode.id)
        except ToolError as error:
            return self._failed(error)
        if self._options.on_failure is not None:
            metrics["failed"] = 0.0
        low, high = self._options.scale
        value = (score - low) / (high - low)
        if self._options.correct_from is not None:
            metrics["correct"] = float(value >= self._options.correct_from)
        return Score(value, metrics=metrics)

    def _failed(self, error: ToolError) -> Score:
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
        unreadable = float(isinstance(error, JudgeAnswerError))
        return Score(self._options.on_failure, metrics={"unreadable": unreadable, "cache_hits": 0.0, "failed": 1.0})
