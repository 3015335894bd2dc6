"""One episode in an environment: a reset, then steps, one at a time.

A connection that breaks takes the server's side of the episode with it. Before the first step the episode begins anew
in another session, unnoticed; later it fails when its reward is asked for, so that no model learns from a server that
went away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolrl.errors import ToolsetError
from toolrl_plugin_openenv.connection import LostError, OpenEnvConnection, SlowError
from toolrl_plugin_openenv.options import OpenEnvOptions
from toolrl_plugin_openenv.session_pool import SessionPool
from toolrl_plugin_openenv.wire import (
    FATAL,
    INVALID,
    PROTOCOL,
    Answer,
    Failure,
    Observed,
    StateAnswer,
    reset_message,
    step_message,
)


class NotMadeError(Exception):
    """A step that wasn't made: the episode is over, or what came before was given up. The message is for the model."""


@dataclass
class Rewards:
    """The rewards of an episode's steps, as the option `reward` wants them."""

    final: bool
    last: float | None = None
    apart: float = 0.0
    """Of resets and of answers that came late, which belong to no turn that could still be credited."""

    def of_step(self, value: float | None) -> float | None:
        """What a step's turn is credited."""
        if value is not None:
            self.last = value
        return None if self.final else value

    def of_no_step(self, value: float | None) -> None:
        """A reward that came outside of a step."""
        if value is not None:
            self.last = value
            self.apart += value

    def rest(self) -> float | None:
        """What the whole episode is credited."""
        return self.last if self.final else (self.apart or None)


class OpenEnvEpisode:
    """See the module's docstring. Steps of one turn may be asked for at once: they are made in that order."""

    def __init__(
        self,
        pool: SessionPool,
        connection: OpenEnvConnection,
        arguments: Mapping[str, Any],
        options: OpenEnvOptions,
    ) -> None:
        """`arguments` are those of the reset."""
        self.connection = connection
        self.rewards = Rewards(options.reward == "final")
        self.done = False
        self._pool = pool
        self._arguments = arguments
        self._options = options
        self._lock = asyncio.Lock()
        self._first: Observed | None = None
        self._round = 0
        """Grows with each step that is given up; steps that were queued before aren't made."""
        self._restorable = True
        """No step was made yet, also none whose answer was given up: another session can take this one's place."""
        self._broken: ToolsetError | None = None

    async def begin(self) -> Observed:
        """Reset, the first time. Raises ToolsetError."""
        async with self._lock:
            return await self._begin()

    async def step(self, action: Mapping[str, Any]) -> Observed | Failure:
        """Make a step. Raises NotMadeError, SlowError, ToolsetError; TypeError, ValueError where JSON can't hold it."""
        message, round_ = step_message(action), self._round
        async with self._lock:
            await self._begin()
            if self.done:
                raise NotMadeError("The episode is over. This didn't run.")
            if round_ != self._round:
                raise NotMadeError("This didn't run, as what came before it was given up after its time limit.")
            answer = await self._made_step(message)
            if isinstance(answer, Observed):
                self.done = answer.done
                return Observed(answer.observation, self.rewards.of_step(answer.reward), answer.done)
            if isinstance(answer, StateAnswer):
                raise self._break("the server answered a step with its state")
            return answer

    async def reward(self) -> float | None:
        """What no step was credited. Raises ToolsetError where the episode broke."""
        if self._broken is not None:
            raise self._broken
        return self.rewards.rest()

    async def _begin(self) -> Observed:
        if self._broken is not None:
            raise self._broken
        if self._first is not None:
            return self._first
        self.connection.late = self._late
        try:
            message = reset_message(self._arguments)
        except (TypeError, ValueError) as error:
            raise self._break(f"JSON can't hold the arguments of the reset: {error}") from error
        try:
            answer = await self._asked(message, self._options.reset_timeout)
        except LostError:
            answer = await self._anew(message)
        if not isinstance(answer, Observed):
            raise self._break(
                f"the reset failed: {answer.message if isinstance(answer, Failure) else 'no observation'}"
            )
        self._first = answer
        self.done = answer.done
        self.rewards.of_no_step(answer.reward)
        return answer

    async def _made_step(self, message: str) -> Answer:
        restorable, self._restorable = self._restorable, False
        seconds = self._options.step_timeout
        try:
            return await self._asked(message, seconds, slow_breaks=False)
        except LostError as error:
            restored = restorable and await self._restored()
            if error.refused:
                # No episode fails for what a model says: where the session can't be had again, it is over as played.
                self._restorable, self.done = restored, not restored
                return Failure(INVALID, "the environment doesn't allow these values", over=self.done)
            if not restorable:
                raise self._break(f"{error.message}. What the episode was is lost with it") from error
            if not restored:
                raise self._break("the connection was lost, and a new reset gave another first observation") from error
        try:
            return await self._asked(message, seconds)
        except LostError as error:
            raise self._break(f"{error.message}, again") from error

    async def _restored(self) -> bool:
        """Reset in a new session. True where the model's first observation still holds."""
        first, known = await self._anew(reset_message(self._arguments)), self._first
        if not isinstance(first, Observed) or known is None:
            return False
        # Metadata may hold the time of day.
        alike = _without_metadata(first.observation) == _without_metadata(known.observation)
        return alike and (first.reward, first.done) == (known.reward, known.done)

    async def _anew(self, message: str) -> Answer:
        """Reset in a new session. The old one is gone; its place is kept."""
        old = self.connection
        old.late = lambda _: None
        await old.close()
        try:
            self.connection = await self._pool.open()
            self.connection.late = self._late
            return await self._asked(message, self._options.reset_timeout)
        except ToolsetError as error:
            raise self._break(error.message) from error

    async def _asked(self, message: str, seconds: float, *, slow_breaks: bool = True) -> Answer:
        """One exchange. A session that the server ended counts as lost."""
        try:
            answer = await self.connection.request(message, seconds)
        except SlowError as error:
            self._round += 1
            if slow_breaks:
                raise self._break(error.message) from error
            raise
        if isinstance(answer, Failure) and answer.code in FATAL:
            said = "the session is unusable" if answer.code == PROTOCOL else "the server ended the session"
            raise LostError(f"{said}: {answer.message[:500]} ({answer.code})", refused=answer.is_refusal)
        return answer

    def _late(self, answer: Answer) -> None:
        if isinstance(answer, Observed):
            self.rewards.of_no_step(answer.reward)
            self.done = self.done or answer.done

    def _break(self, message: str) -> ToolsetError:
        self._broken = ToolsetError(message)
        return self._broken


def _without_metadata(observation: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in observation.items() if key != "metadata"}
