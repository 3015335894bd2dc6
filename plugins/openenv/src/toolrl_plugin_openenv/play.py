"""One episode in an environment: a reset, then steps, one at a time.

`Play` is an episode of an OpenEnv server. A connection that breaks takes the server's side of the episode with it.
Before the first step the episode begins anew in another session, unnoticed; later it is over, unless `replay` makes the
steps again. An episode that is over like this has no reward: asked for it, it fails, so that no model learns from a
server that went away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from toolrl.errors import ToolsetError
from toolrl_plugin_openenv.connection import FullError, LostError, OpenEnvConnection, SlowError
from toolrl_plugin_openenv.door import Door
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

ERRORS_IN_A_ROW = 3
"""So many steps in a row that the environment couldn't make, and a talk with it is over."""


class StepRefusedError(Exception):
    """The environment couldn't make a step of an action; the message is for the model."""


class _ActionRefusedError(LostError):
    """The server ended the session over an action that the environment refuses; nothing was done."""


class NotMadeError(Exception):
    """A step that wasn't made: the episode is over, or what came before was given up. The message is for the model."""


class Game(Protocol):
    """An environment as a talk sees it."""

    async def begin(self) -> Observed:
        """The first observation. Raises ToolsetError."""
        ...

    async def act(self, action: Any) -> Observed:
        """Make a step. Raises RefusedError, and ToolsetError where the episode can't go on."""
        ...

    async def reward(self) -> float | None:
        """What no step's reward holds. Raises ToolsetError where the episode broke."""
        ...


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


class Play:
    """See the module's docstring. Steps of one turn may be asked for at once: they are made in that order."""

    def __init__(
        self,
        door: Door,
        connection: OpenEnvConnection,
        arguments: Mapping[str, Any],
        *,
        step_timeout: float,
        reset_timeout: float,
        final: bool,
        replay: bool,
    ) -> None:
        """`arguments` are those of the reset. `final` and `replay` are the options."""
        self.connection = connection
        self.rewards = Rewards(final)
        self.done = False
        self.door = door
        self._arguments = arguments
        self._step_timeout = step_timeout
        self._reset_timeout = reset_timeout
        self._replay = replay
        self._lock = asyncio.Lock()
        self._first: Observed | None = None
        self._round = 0
        """Grows with each step that is given up; steps that were queued before aren't made."""
        self._steps = 0
        self._given_up = False
        """A step was made whose answer nobody has: what it did can't be done again in another session."""
        self._made: list[tuple[str, Answer]] = []
        """What a replay makes again."""
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
            given_up, self._given_up = self._given_up, True
            can_restore = not given_up and (self._replay or not self._steps)
            try:
                answer = await self._made_step(message, can_restore=can_restore)
            except _ActionRefusedError:
                self._given_up = given_up
                return await self._refused(can_restore=can_restore)
            self._given_up = given_up
            self._steps += 1
            if self._replay:
                self._made.append((message, answer))
            if isinstance(answer, Observed):
                self.done = answer.done
                return Observed(answer.observation, self.rewards.of_step(answer.reward), answer.done)
            if isinstance(answer, StateAnswer):
                raise self._break("the server answered a step with its state")
            return answer

    async def reward(self) -> float | None:
        """See Game."""
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
            answer = await self._asked(message, self._reset_timeout)
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

    async def _made_step(self, message: str, *, can_restore: bool) -> Answer:
        try:
            return await self._asked(message, self._step_timeout, slow_breaks=False)
        except _ActionRefusedError:
            raise
        except LostError as error:
            if not can_restore:
                raise self._break(f"{error.message}. What the episode was is lost with it") from error
        difference = await self._restored()
        if difference:
            raise self._break(f"the connection was lost, and {difference}")
        return await self._repeated(message)

    async def _refused(self, *, can_restore: bool) -> Failure:
        """The answer to an action that cost the session. No episode fails for what a model says: where the session
        can't be had again, the episode is over as it was played."""
        self.done = not can_restore or bool(await self._restored())
        return Failure(INVALID, "the environment doesn't allow these values", over=self.done)

    async def _restored(self) -> str:
        """Do all that was done again, in a new session. Says what is answered otherwise than before, if anything."""
        first = await self._anew(reset_message(self._arguments))
        if not _alike(first, self._first):
            return "a new reset gave another first observation"
        for number, (made, before) in enumerate(self._made, 1):
            if not _alike(await self._repeated(made), before):
                return f"step {number} gave something else in the replay"
        return ""

    async def _repeated(self, message: str) -> Answer:
        try:
            return await self._asked(message, self._step_timeout)
        except LostError as error:
            raise self._break(f"{error.message}, again") from error

    async def _anew(self, message: str) -> Answer:
        """Reset in a new session. The old one is gone; its place is kept."""
        old = self.connection
        old.late = lambda _: None
        await old.close()
        try:
            self.connection = await self.door.open()
            self.connection.late = self._late
            return await self._asked(message, self._reset_timeout)
        except (LostError, FullError, ToolsetError) as error:
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
            kind = _ActionRefusedError if answer.is_refusal else LostError
            said = "the session is unusable" if answer.code == PROTOCOL else "the server ended the session"
            raise kind(f"{said}: {answer.message[:500]} ({answer.code})")
        return answer

    def _late(self, answer: Answer) -> None:
        if isinstance(answer, Observed):
            self.rewards.of_no_step(answer.reward)
            self.done = self.done or answer.done

    def _break(self, message: str) -> ToolsetError:
        self._broken = ToolsetError(message)
        return self._broken


def _alike(answer: Answer, before: Answer | None) -> bool:
    """The same for the model; metadata may hold the time of day."""
    if isinstance(answer, Observed) and isinstance(before, Observed):
        same = {key: value for key, value in answer.observation.items() if key != "metadata"}
        known = {key: value for key, value in before.observation.items() if key != "metadata"}
        return (same, answer.reward, answer.done) == (known, before.reward, before.done)
    return isinstance(answer, Failure) and isinstance(before, Failure) and answer.code == before.code
