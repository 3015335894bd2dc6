"""The reward `rlfactory`: what RLFactory's SearchEnv, or the user's own Env, gives.

The episode's score is `compute_score` of a batch of one; with `step_rewards` each turn is also credited with
`get_step_reward`, where NaN is nothing. Both run in a thread. What is scored is what the model wrote, unless
`solution: response` asks for RLFactory's way, in which tools' answers count as the model's text.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.errors import ConfigError, RewardError
from toolrl.protocols import BuildContext
from toolrl.tools.threads import POOL
from toolrl.types import Episode, Score
from toolrl_plugin_rlfactory.envs import (
    DataItem,
    DataProto,
    Env,
    SearchEnv,
    em_check,
    extract_solution,
    shared_env,
    targets_of,
)
from toolrl_plugin_rlfactory.loading import call_accepted
from toolrl_plugin_rlfactory.options import EnvRewardOptions
from toolrl_plugin_rlfactory.reading import ANSWER, ANSWER_END
from toolrl_plugin_verl.dump import prompt_text, response_text


class RLFactoryReward:
    """See the module's docstring."""

    def __init__(self, options: EnvRewardOptions | None, context: BuildContext) -> None:
        """Raises ConfigError for classes that can't be made."""
        self._options = options or EnvRewardOptions()
        self._tokenizer = context.tokenizer
        if self._options.solution == "response" and self._tokenizer is None:
            raise ConfigError("solution: response needs the model's tokenizer", where=context.where or None)
        if self._options.env is None:
            config = {**self._options.config, "format_score": self._options.format_score}
            self._options = self._options.model_copy(update={"config": config})
        self.env: Any = shared_env(self._options, context.where or None, "search")
        self._name = type(self.env).__name__
        if _asks_a_model(self.env):
            raise ConfigError(
                f"{self._name} has a reward model score its episodes, and there is none here",
                where=context.where or None,
                hint="Give it a _compute_score_with_rules, or score by the reward `llm_judge`.",
            )

    async def score(self, episode: Episode) -> Score:
        """Raises RewardError for what is no score."""
        return await POOL.submit(self._score, episode)

    def _score(self, episode: Episode) -> Score:
        """In a thread."""
        item = self._item(episode)
        scores = call_accepted(
            self.env.compute_score,
            reward_rollout_wg=None,
            reward_tokenizer=None,
            tokenizer=self._tokenizer,
            data=DataProto([item]),
            if_val=False,
            use_process_reward=False,
        )
        steps = self._steps(episode) if self._options.step_rewards else {}
        value = self._value(scores)
        return Score(value, per_turn=steps, metrics=self._metrics(value, episode, item))

    def _item(self, episode: Episode) -> DataItem:
        task = episode.task
        answer = copy.deepcopy(task.answer)
        text = response_text(episode, self._tokenizer) if self._options.solution == "response" else episode.model_text
        if episode.answer is not None and text.rfind(ANSWER) > text.rfind(ANSWER_END):
            text += ANSWER_END  # It ended generation as an end flag, and the engine cut it off.
        extra = copy.deepcopy(dict(task.extra))
        source, info = extra.get("data_source"), extra.get("extra_info", extra)
        if self.env.use_verify_tool:
            found = self.env.verify_tool(source, text, answer, info)
            answer = {**(answer if isinstance(answer, Mapping) else {"target": answer}), "verified_results": found}
        row = {"reward_model": {"ground_truth": answer}, "data_source": source, "extra_info": info}
        main = episode.main
        ids = main.ids[: main.prompt_length], main.ids[main.prompt_length :]
        return DataItem(prompt_text(episode, self._tokenizer), text, ids, row)

    def _steps(self, episode: Episode) -> dict[int, float]:
        texts = [turn.text for turn in episode.turns]
        if not texts:
            return {}
        factor = {} if self._options.factor is None else {"format_score": self._options.factor}
        given = [float(value) for value in call_accepted(self.env.get_step_reward, responses=texts, **factor)]
        if len(given) != len(texts):
            raise RewardError(f"{self._name}.get_step_reward gave {len(given)} values for {len(texts)} responses")
        return {index: value for index, value in enumerate(given) if not math.isnan(value)}

    def _value(self, scores: Any) -> float:
        """The sum of the one episode's scores."""
        try:
            of_one = scores[0]
            values = of_one if isinstance(of_one, Sequence) else [of_one]
            return math.fsum(float(value) for value in values)
        except (TypeError, ValueError, IndexError, KeyError):
            raise RewardError(
                f"{self._name}.compute_score gave {scores!r:.80}, expected a list of scores for each episode: [[1.0]]"
            ) from None

    def _metrics(self, value: float, episode: Episode, item: DataItem) -> dict[str, float]:
        """Whether the answer is one of the right ones, by SearchEnv's comparison where the row's ground truth is in its
        form; else a score between 0 and 1."""
        answer, truth = extract_solution(item.response_str), episode.task.answer
        metrics = {"answered": float(answer is not None)}
        if isinstance(self.env, SearchEnv) or (isinstance(truth, Mapping) and "target" in truth):
            metrics["correct"] = float(answer is not None and em_check(answer, targets_of(truth)))
        elif 0 <= value <= 1:
            metrics["correct"] = value
        return metrics


def _asks_a_model(env: Any) -> bool:
    """Whether an Env scores by RLFactory's reward model alone: by rules it would always be 0."""
    names = ("_compute_score_with_rules", "compute_score")
    rules = any(getattr(type(env), name, None) is not getattr(Env, name) for name in names)
    return not rules and hasattr(env, "_compute_single_score_with_reward_rollout_wg")
