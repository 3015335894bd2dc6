"""Warns of a run that learns nothing about its tools, for a reason that its episodes show.

Each step's new groups are looked at, over the last `WINDOW` steps; each warning is logged once:

- no calls although there are tools, or hardly any more; those that were answered by an error don't count;
- the same reward in all episodes, or in all episodes of each group, so that nothing has an advantage;
- episodes that call a tool come out hardly better than others of the same group. Of each group with both the difference
  of their mean outcomes is taken; the mean d of these differences has the standard error s = deviation / √groups. With
  at least `PAIRS` groups, d + 1.645 s below `_HELPS` says that calls gain less than that (one-sided, 5 %).
"""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolrl.config.model import Config
from toolrl.types import Episode, Group
from toolrl_plugin_torch.loop.difficulty import outcomes

_log = logging.getLogger(__name__)

WINDOW = 20
"""Steps."""
PAIRS = 50
"""Groups with and without calls, at least."""
_HELPS = 0.1
"""What calls gain where a tool helps, in shares of correct answers, or rewards."""
_FEW = 0.05
"""Calls in an episode that are next to none."""


@dataclass(frozen=True)
class _Step:
    """What is kept of a step."""

    calls: int
    episodes: int
    """Of environments that have tools, as the calls."""
    rewards: Sequence[float]
    """Those that differ."""
    flat: bool
    """Every group's rewards are equal."""
    gains: Sequence[float]
    """Of each group with both: the mean outcome of episodes that call, less that of the others."""


class LearningChecks:
    """Looks at each step of one run."""

    def __init__(self, config: Config) -> None:
        algorithm: Any = config.algorithm
        self._with_tools = {name for name, environment in config.environments.items() if environment.tools}
        by_group = algorithm.advantage is None and algorithm.baseline in ("group_mean", "leave_one_out")
        self._flat_is_lost = algorithm.drop_flat_groups or by_group
        """Whether a group of equal rewards teaches nothing: they are compared with no other group's."""
        self._by_rewards = algorithm.distillation is None
        """Whether nothing is learned but by rewards."""
        self._metric: str = algorithm.filter_metric
        self._steps: deque[_Step] = deque(maxlen=WINDOW)
        self._most_calls = 0.0
        self._warned: set[str] = set()

    def look(self, groups: Sequence[Group], metrics: Mapping[str, float]) -> None:
        """Note a step's groups, and log what is new in them. `metrics` are those of its update."""
        scored = [episode for group in groups for episode in group.scored]
        offered = [episode for episode in scored if episode.environment in self._with_tools]
        step = _Step(
            calls=sum(map(_answered, offered)),
            episodes=len(offered),
            rewards=sorted({episode.reward for episode in scored}),
            flat=metrics.get("groups/flat") == 1.0,
            gains=[gain for group in groups if (gain := self._gain(group.scored)) is not None],
        )
        self._steps.append(step)
        self._most_calls = max(self._most_calls, step.calls / max(step.episodes, 1))
        for kind, text in self._found() if len(self._steps) == WINDOW else ():
            if kind not in self._warned:
                self._warned.add(kind)
                _log.warning("the last %d steps: %s (said once)", WINDOW, text)

    def _gain(self, episodes: Sequence[Episode]) -> float | None:
        by_call: dict[bool, list[float]] = {True: [], False: []}
        for episode, outcome in zip(episodes, outcomes(episodes, self._metric), strict=True):
            by_call[_answered(episode) > 0].append(outcome)
        called, others = by_call[True], by_call[False]
        return statistics.fmean(called) - statistics.fmean(others) if called and others else None

    def _found(self) -> Iterator[tuple[str, str]]:
        """What is wrong in the window, by kind."""
        episodes = sum(step.episodes for step in self._steps)
        mean = sum(step.calls for step in self._steps) / max(episodes, 1)
        if episodes and (not mean or mean < _FEW <= self._most_calls / 5):
            yield (
                "calls",
                f"an episode makes {mean:.2g} calls that succeed, at most {self._most_calls:.2g} in a step before. "
                "Check in the report whether the model tries, environments.*.parser reads it, and the tool answers; "
                "one that doesn't try needs a system_prompt that asks for calls, or fine-tuning first (toolrl sft)",
            )
        rewards = {reward for step in self._steps for reward in step.rewards}
        if self._by_rewards and len(rewards) == 1:
            yield (
                "rewards",
                f"every episode got the reward {rewards.pop():g}: there is nothing to learn from. Check in the report "
                "what the reward functions read as the answer, and whether the tasks are all too hard or too easy",
            )
        elif self._by_rewards and self._flat_is_lost and all(step.flat for step in self._steps):
            yield (
                "rewards",
                "in no group did rewards differ (groups/flat is 1): no episode has an advantage. Take other tasks, a "
                "larger algorithm.group_size, a higher rollout.temperature, or algorithm.difficulty",
            )
        gains = [gain for step in self._steps for gain in step.gains]
        if len(gains) >= PAIRS:
            gain, error = statistics.fmean(gains), statistics.stdev(gains) / len(gains) ** 0.5
            if error and gain + 1.645 * error <= _HELPS:
                yield (
                    "help",
                    f"episodes that called a tool came out hardly better than others of the same task: {gain:+.3f}, "
                    f"standard error {error:.3f}, over {len(gains)} groups with both. Check in the report what tools "
                    "answer; `toolrl eval --ablate` measures whether they help",
                )


def _answered(episode: Episode) -> int:
    """Calls that were answered without an error."""
    return sum(record.result.error is None for record in episode.calls)
