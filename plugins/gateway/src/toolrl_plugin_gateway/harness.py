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
from toolrl_plugin_gateway.dialect import Json, RefusedError
from toolrl_plugin_gateway.options import HarnessOptions
from toolrl_plugin_gateway.server import Gateway
from toolrl_plugin_gateway.session import Session

_log = logging.getLogger(__name__)
MODEL = "agent"
"""The model's name that agents are given."""
_UNASKED = (
    "Does it ask another server than OPENAI_BASE_URL or ANTHROPIC_BASE_URL, or answer from a cache of earlier episodes "
    "(DSPy: dspy.LM(..., cache=False))?"
)


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
        if outcome.stop == "final" and not session.counts["requests"]:
            raise AgentError(f"the agent ended without asking the model. {_UNASKED}")
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
            if session.refusal is not None:
                raise AgentError("the agent ended after its last request was refused")
        except Exception as error:
            if session.failure is not None:
                return Outcome(stop="error")
            timed_out = limit is not None and limit.expired()
            if session.refusal is None:
                if timed_out:
                    return Outcome(stop="timeout")
                if session.stop is not None:
                    return Outcome(stop=session.stop)  # It gave up where the model refused, or was cut.
            if self.limits.crash_reward is None:
                said = AgentError(f"time_limit: {self.limits.time_limit:g} s are up") if timed_out else error
                raise _with_refusal(said, session.refusal) from error
            return Outcome(score=Score(self.limits.crash_reward), stop="aborted")
        return replace(outcome, stop=session.stop) if session.stop and outcome.stop == "final" else outcome


def _with_refusal(error: Exception, refusal: RefusedError | None) -> Exception:
    """The error, with the refusal that is likely its cause."""
    if refusal is None:
        return error
    said = "" if type(error) is AgentError else f"{type(error).__name__}: "
    return AgentError(f"{said}{error}\nits last request was refused: {refusal.status} {refusal.message}")


def as_json(messages: tuple[Message, ...]) -> list[Json]:
    """Messages in OpenAI's form."""
    return [write_message(message) for message in messages]


def describe(task: Task) -> Json:
    """A task as an agent may know it: neither its answer nor other columns of its row."""
    return {"id": task.id, "messages": as_json(task.messages)}
