"""What an episode runs in: tools, parser, chat format, rewards and limits, put together by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from toolrl.errors import DataError
from toolrl.parsing.flags import EndFlags
from toolrl.protocols import ChatFormat, Harness, StartsAndStops, ToolParser
from toolrl.rollouts.scoring import NamedReward as NamedReward
from toolrl.tools.toolbox import ToolBox
from toolrl.tools.toolset import stop_in_time
from toolrl.types import Message, Task

T = TypeVar("T")


@dataclass(frozen=True)
class Environment:
    """One entry under `environments:`, built. Shared by all its episodes."""

    name: str
    parser: ToolParser
    chat: ChatFormat
    tools: ToolBox
    rewards: Sequence[NamedReward] = ()
    system_prompt: str | None = None
    end_flags: EndFlags = field(default_factory=lambda: EndFlags(()))
    max_turns: int = 4
    max_invalid_turns: int | None = None
    """Consecutive turns without a call that could be run; None for no limit."""
    call_cost: float = 0.0
    untrained_roles: Sequence[str] = ()
    harness: Harness | None = None
    """Plays the episodes; None for the turn loop."""

    @cached_property
    def scores_groups(self) -> bool:
        """True where a reward has to see all episodes of a task at once."""
        return any(named.scores_groups for named in self.rewards)

    @property
    def _started(self) -> Sequence[StartsAndStops]:
        """What is started besides the tools."""
        parts: Sequence[object] = (*(named.reward for named in self.rewards), self.harness)
        return [part for part in parts if isinstance(part, StartsAndStops)]

    async def start(self) -> None:
        """Start tools, rewards and the harness, before the first episode."""
        await self.tools.start()
        for part in self._started:
            await part.start()

    async def stop(self) -> None:
        """Stop them in reverse order, each whatever another one does; also when start failed half-way."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.tools.stop)
            for part in self._started:
                stack.push_async_callback(stop_in_time, part)

    def opening(self, task: Task) -> list[Message]:
        """The task's messages, after the system prompt unless they bring one."""
        messages = list(task.messages)
        if self.system_prompt is not None and not any(message.role == "system" for message in messages):
            messages.insert(0, Message("system", self.system_prompt))
        return messages


@dataclass(frozen=True, slots=True)
class Limits:
    """Sampling and length limits of a rollout. They own the temperature of sampling, evaluation and training."""

    max_turn_tokens: int
    max_episode_tokens: int
    """All tokens of an episode, prompt and tool results included."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    keep_masks: bool = False

    @property
    def policy_temperature(self) -> float:
        """The temperature of log-probabilities: 1 where sampling is greedy."""
        return self.temperature or 1.0

    def at(self, **sampling: float | None) -> Limits:
        """The same with other settings of sampling, by name; None keeps one."""
        return replace(self, **{name: value for name, value in sampling.items() if value is not None})  # type: ignore[arg-type]


ROUTES = ("task_type", "agent_name")
"""Columns of a row that may name its environment where nothing else does."""


def pick_environment(environments: Mapping[str, T], task: Task) -> T:
    """The environment that a task names. Else the one that its column `task_type` or `agent_name` names, else
    the only one, else `default`. Raises DataError."""
    if task.environment is not None:
        if task.environment in environments:
            return environments[task.environment]
        raise DataError(
            f"task {task.id!r} asks for environment {task.environment!r}; the config has: {', '.join(environments)}",
            hint="Add it under `environments:`, or change the task's `environment`.",
        )
    columns = {column: task.extra[column] for column in ROUTES if task.extra.get(column) is not None}
    for value in columns.values():
        if isinstance(value, str) and value in environments:
            return environments[value]
    if len(environments) == 1:
        return next(iter(environments.values()))
    if "default" in environments:
        return environments["default"]
    shown = f" (its {', '.join(f'{column} is {value!r:.80}' for column, value in columns.items())})" if columns else ""
    raise DataError(
        f"task {task.id!r} names no environment{shown}, and of {', '.join(environments)} none is called 'default'",
        hint="Give each row an `environment`, or call one environment `default`.",
    )
