"""The reward `verl`: the score that verl's reward function gives.

By the row's `data_source` it is one of verl's own (`utils/reward_score/default.py`), or else a function of the user's
with verl's signature, `compute_score(data_source, solution_str, ground_truth, extra_info)`, which returns a number,
`(number, …)`, or a dict with `score`. Numbers of the dict become metrics; `acc` is what accuracy is computed from.

`extra_info` is the row's, with the tools' `agent_data.extra_fields`, `tool_rewards` (what each call's `execute` gave,
in order), `rollout_reward_scores` (the toolsets' own rewards) and `num_turns`.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from toolrl.builtin.given_rows import plain
from toolrl.errors import ConfigError, RewardError
from toolrl.protocols import BuildContext, Reward
from toolrl.tools.function import is_async
from toolrl.tools.threads import POOL, ThreadPool
from toolrl.types import Episode, Score
from toolrl_common.other_plugins import build_of_plugin
from toolrl_plugin_verl.adapter import EXTRA_FIELDS, REWARD_SCORES
from toolrl_plugin_verl.dump import response_text
from toolrl_plugin_verl.functions import run_file
from toolrl_plugin_verl.options import DELEGATED, VerlRewardOptions, adapted
from toolrl_plugin_verl.results import TOOL_REWARD, metrics_of
from toolrl_plugin_verl.utils.reward_score import geo3k
from toolrl_plugin_verl.utils.reward_score.default import score_as

_log = logging.getLogger(__name__)
_GRADING = ThreadPool(geo3k.WORKERS)
_BATCH = {
    "data_sources": "data_source",
    "solution_strs": "solution_str",
    "ground_truths": "ground_truth",
    "extra_infos": "extra_info",
}
"""Arguments of a function that scores a batch, for verl's batch reward manager."""


class VerlReward:
    """Scores an episode as verl would."""

    def __init__(self, options: VerlRewardOptions | None, context: BuildContext) -> None:
        """Raises ConfigError for a file or a function that can't be used."""
        self._options = options or VerlRewardOptions()
        self._context = context
        self._tokenizer = context.tokenizer
        self._function = _user_function(self._options, context.where or None) if self._options.path else None
        self._delegates: dict[str, Reward] = {}
        self._sources: set[str] = set()
        """The data sources that were scored."""
        if self._options.solution == "response" and self._tokenizer is None:
            raise ConfigError("solution: response needs the model's tokenizer", where=context.where or None)

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for a data source that nothing scores."""
        whole = self._options.solution == "response"
        text = response_text(episode, self._tokenizer) if whole else episode.model_text
        if self._function is not None:
            return await self._by_function(episode, text)
        self._sources.add(str(episode.task.extra.get("data_source")))
        scorer = self._options.scorer(episode.task)
        if scorer in DELEGATED:
            return await self._delegate(scorer).score(replace(episode, task=adapted(episode.task, scorer)))
        return await _GRADING.submit(self._by_scorer, scorer, text, episode.task.answer)

    async def start(self) -> None:
        """Nothing is kept before the first episode."""

    async def stop(self) -> None:
        """Warn of scorers whose data source no task had."""
        if self._sources and (idle := self._options.scorers.keys() - self._sources - {"*"}):
            names, there = (", ".join(map(repr, sorted(found))) for found in (idle, self._sources))
            where = self._context.where or "rewards"
            _log.warning("%s.options.scorers: no task had the data_source %s; there was %s", where, names, there)

    def _by_scorer(self, scorer: str, text: str, answer: Any) -> Score:
        """Blocks while mathruler grades."""
        options, golds = self._options, answer if isinstance(answer, list) and answer else [answer]
        if scorer == "geo3k":
            right = max(geo3k.acc_reward(text, gold, timeout=options.timeout) for gold in golds)
            share, form = options.format_score, geo3k.format_reward(text)
            return Score((1.0 - share) * right + share * form, metrics={"correct": right, "format": form})
        scores = [score_as(scorer, text, gold, method=options.method, timeout=options.timeout) for gold in golds]
        value = max(found["score"] if isinstance(found, dict) else found for found in scores)
        return Score(value, metrics={"correct": float(value > 0)})

    # Rewards of other plugins.

    def _delegate(self, scorer: str) -> Reward:
        if scorer not in self._delegates:
            name, options, missing = self._options.delegate(scorer)
            built: Reward = build_of_plugin("rewards", name, options, self._context, self._context.where, missing)
            self._delegates[scorer] = built
        return self._delegates[scorer]

    # A function of the user's.

    async def _by_function(self, episode: Episode, text: str) -> Score:
        assert self._function is not None
        given = {
            "data_source": episode.task.extra.get("data_source"),
            "solution_str": text,
            "ground_truth": copy.deepcopy(episode.task.answer),
            "extra_info": _extra_info(episode),
        }
        batch = "solution_strs" in inspect.signature(self._function).parameters
        if batch:
            given = {many: [given[one]] for many, one in _BATCH.items()}
        kwargs = {**given, **self._options.reward_kwargs}
        function = self._function
        result = function(**kwargs) if is_async(function) else await POOL.submit(function, **kwargs)
        if inspect.isawaitable(result):
            result = await result
        if batch and isinstance(result, list) and len(result) == 1:
            result = result[0]
        return _as_score(result, self._options.name)


def _user_function(options: VerlRewardOptions, where: str | None) -> Callable[..., Any]:
    assert options.path is not None
    file = Path(options.path).expanduser()
    if not file.is_file():
        raise ConfigError(f"path: there is no file {options.path!r}", where=where)
    function = getattr(run_file(file, where), options.name, None)
    if not callable(function):
        raise ConfigError(
            f"{options.path!r} has no function {options.name!r}", where=where, hint="Name it with the option `name`."
        )
    return cast("Callable[..., Any]", function)


def _extra_info(episode: Episode) -> dict[str, Any]:
    task = episode.task
    info = copy.deepcopy(dict(task.extra.get("extra_info") or {}))
    info.update(copy.deepcopy(dict(episode.notes.get(EXTRA_FIELDS) or {})))
    given = (record.result.metrics.get(TOOL_REWARD, record.result.reward) for record in episode.calls)
    info["tool_rewards"] = [reward for reward in given if reward is not None]
    own = [entry for entry in episode.rewards if entry.source.startswith("tool:")]
    by_set = {entry.source.removeprefix("tool:"): entry.value for entry in own}
    info["rollout_reward_scores"] = {**by_set, **(episode.notes.get(REWARD_SCORES) or {})}
    # verl counts the question, each of the model's turns, and the answers to a turn that another one follows.
    info["num_turns"] = max(1, 2 * len(episode.turns))
    return info


def _as_score(result: Any, name: str) -> Score:
    result = plain(result)
    metrics = metrics_of(result)
    metrics.pop("score", None)
    if isinstance(result, Mapping):
        result = result.get("score")
    elif isinstance(result, list) and result:  # A tuple, before `plain`.
        result = result[0]
    if not isinstance(result, int | float):
        raise RewardError(f"{name}() returned {result!r:.80}, expected a number, (number, …), or a dict with 'score'")
    value = float(result)
    accuracy = metrics.get("correct", metrics.get("acc", value))
    if 0 <= accuracy <= 1:
        metrics["correct"] = accuracy
    else:
        metrics.pop("correct", None)
    return Score(value, metrics=metrics)
