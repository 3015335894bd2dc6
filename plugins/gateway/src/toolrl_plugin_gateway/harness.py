"""What the harnesses behind the gateway have in common: an agent gets a base URL and a key, and plays until it ends."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, ClassVar

from toolrl.errors import ConfigError
from toolrl.protocols import BuildContext, EpisodeContext, Model, Outcome
from toolrl.types import Message, Score, Task
from toolrl_plugin_gateway.chat_completions import write_message
from toolrl_plugin_gateway.dialect import Json
from toolrl_plugin_gateway.options import HarnessOptions
from toolrl_plugin_gateway.server import Gateway
from toolrl_plugin_gateway.session import Session

_log = logging.getLogger(__name__)
MODEL = "agent"
"""The model's name that agents are given."""


class AgentError(Exception):
    """An agent that failed elsewhere."""


class GatewayHarness(ABC):
    """Plays episodes by an agent that asks the gateway."""

    waits_for_agents: ClassVar[bool] = True
    """Whether an episode may wait for an agent before it asks. In a deterministic run all others would wait for it."""

    def __init__(self, options: HarnessOptions, context: BuildContext) -> None:
        """Raises ConfigError."""
        if context.deterministic and self.waits_for_agents:
            raise ConfigError(
                f"deterministic: the harness {context.name!r} depends on processes outside of the run",
                where=context.where,
                hint="Use the harness `python`, or leave `deterministic` out.",
            )
        self.limits = options
        self.where = context.where
        self.gateway = Gateway(options.roles)
        self.places: AbstractAsyncContextManager[Any] = nullcontext()
        """Held while the agent plays; its time begins when it is."""

    async def start(self) -> None:
        """Listen, on this machine alone."""
        await self.gateway.start()

    async def stop(self) -> None:
        """Close all connections."""
        await self.gateway.stop()
        if names := self.gateway.unasked():
            _log.warning("%s.options.roles: no request named the model %s", self.where, ", ".join(map(repr, names)))

    @abstractmethod
    async def run(self, session: Session) -> Outcome:
        """Let the agent play one episode."""

    async def play(self, task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        """See Harness."""
        async with self.gateway.session(task, model, episode) as session:
            outcome = await self._outcome(session)
        if session.failure is not None:
            raise session.failure
        score = outcome.score or session.score or Score(0.0)
        counts = {name: float(count) for name, count in session.counts.items()}
        return replace(outcome, score=replace(score, metrics={**counts, **score.metrics}))

    async def _outcome(self, session: Session) -> Outcome:
        limit: asyncio.Timeout | None = None
        try:
            async with self.places:
                limit = asyncio.timeout(self.limits.time_limit)
                async with limit:
                    outcome = await self.run(session)
        except Exception:
            if limit is not None and limit.expired():
                return Outcome(stop="timeout")
            if session.failure is not None or session.stop is not None:
                return Outcome(stop=session.stop or "error")  # It gave up where the model refused.
            if self.limits.crash_reward is None:
                raise
            return Outcome(score=Score(self.limits.crash_reward), stop="aborted")
        return replace(outcome, stop=session.stop) if session.stop and outcome.stop == "no_call" else outcome


def as_json(messages: tuple[Message, ...]) -> list[Json]:
    """Messages in OpenAI's form."""
    return [write_message(message) for message in messages]


def describe(task: Task) -> Json:
    """A task as an agent may know it: neither its answer nor other columns of its row."""
    return {"id": task.id, "messages": as_json(task.messages)}
