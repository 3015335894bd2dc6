"""One episode as its agent's requests see it: what was asked, what was answered, and how it may end."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from toolrl.errors import ChatFormatError, ContextFullError, EpisodeEndedError, ToolError, TurnsExhaustedError
from toolrl.protocols import EpisodeContext, Model
from toolrl.types import Score, StopReason, Task, Turn
from toolrl_plugin_gateway.dialect import (
    Answer,
    Dialect,
    Json,
    Known,
    Question,
    RefusedError,
    check_history,
)

_log = logging.getLogger(__name__)

CLOSE_SECONDS = 1.0
"""How long the handlers of an ended episode may take to send their last bytes."""
MOST_SAID = 100
"""Names of fields in the log."""


@dataclass
class Reply:
    """An answer on its way, or given: requests that are retried join it."""

    task: asyncio.Task[Json]
    waiting: int = 0


@dataclass
class Session:
    """One episode behind the gateway."""

    id: str
    """Unique among those of its gateway."""
    task: Task
    model: Model
    context: EpisodeContext
    roles: Mapping[str, str] = field(default_factory=dict)
    """By model name: who is asked; `agent` for names that aren't there."""
    asked: set[str] = field(default_factory=set)
    """The models' names in requests; shared by all sessions of a gateway."""
    said: set[str] = field(default_factory=set)
    """What was logged; shared by the episodes of a gateway, so that it is logged once."""
    key: str = field(default_factory=lambda: f"sk-toolrl-{secrets.token_hex(16)}")
    """What requests to the model carry. The commands that an agent runs for the model may see it."""
    reward_key: str = field(default_factory=lambda: f"reward-toolrl-{secrets.token_hex(16)}")
    """What the report of the episode's reward carries."""
    counts: Counter[str] = field(default_factory=Counter)
    """`requests`, `replayed`, `refused`."""
    score: Score | None = None
    """What the agent itself reported."""
    stop: StopReason | None = None
    """The limit for which the last question was refused, or how the agent's last turn was cut."""
    refusal: RefusedError | None = None
    """Why the last question was refused, other than by a limit of the run."""
    failure: Exception | None = None
    """Why the model can't be asked any more."""
    handlers: set[asyncio.Task[Any]] = field(default_factory=set)
    _replies: dict[bytes, Reply] = field(default_factory=dict)
    _known: Known = field(default_factory=Known)
    _numbers: count[int] = field(default_factory=count)
    _decided: int = -1
    """The newest question that was answered or refused."""
    _stopped: str = "agent"
    """The role whose question set `stop`."""

    def reply(self, dialect: Dialect, body: Json, digest: bytes, *, retried: bool) -> Reply:
        """The answer to a request, which may wait for it. A marked retry of an equal request gets the same one."""
        self.counts["requests"] += 1
        known = self._replies.get(digest)
        if known is not None and retried and not _gone(known.task):
            self.counts["replayed"] += 1
            return known
        reply = self._replies[digest] = Reply(asyncio.create_task(self.ask(dialect, body)))
        reply.task.add_done_callback(_gone)  # Its exception is retrieved, though its client may have left.
        return reply

    async def ask(self, dialect: Dialect, body: Json) -> Json:
        """The response's body. Raises RefusedError."""
        number, role = next(self._numbers), "agent"
        try:
            question = dialect.read(body, self._known)
            self.asked.add(question.model)
            check_history(question)
            role = self.roles.get(question.model, "agent")
            turn = await self._turn(question, role)
        except RefusedError as error:
            if error.status not in (410, 500):
                self._decide(number, role, error.stop, None if error.stop else error)
            raise
        self._say(dialect, question)
        answer = Answer.of(turn, question)
        response = dialect.write(body, answer)
        self._keep(question, turn, response)
        self._decide(number, role, answer.cut if role == "agent" else None, None)
        return response

    def refuse(self, refusal: RefusedError) -> None:
        """Note a question that couldn't even be read."""
        self._decide(next(self._numbers), "agent", None, refusal)

    @property
    def answered(self) -> bool:
        """Whether a question was."""
        return bool(self._known.responses)

    def count(self, dialect: Dialect, body: Json) -> int:
        """The tokens of a request's prompt. Raises RefusedError."""
        question = dialect.read(body, self._known)
        try:
            return self.model.count(question.prompt, question.tools)
        except (ChatFormatError, ToolError) as error:
            raise RefusedError.invalid(str(error)) from error

    async def _turn(self, question: Question, role: str) -> Turn:
        limits: dict[str, Any] = {"max_tokens": question.max_tokens, "stop": question.stop}
        try:
            return await self.model.ask(question.prompt, question.tools, role=role, **limits)
        except ContextFullError as error:
            text = f"prompt is too long: this model's maximum context length is reached. {error.message}"
            raise RefusedError(400, "context_length_exceeded", text, stop="context_full") from error
        except TurnsExhaustedError as error:
            raise RefusedError(400, "turns_exhausted", error.message, stop="max_turns") from error
        except EpisodeEndedError as error:
            raise RefusedError(410, "episode_ended", error.message) from error
        except (ChatFormatError, ToolError) as error:
            raise RefusedError.invalid(str(error)) from error
        except Exception as error:
            self.failure = error
            raise RefusedError(500, "engine_failed", f"the model failed: {error}") from error

    def _keep(self, question: Question, turn: Turn, response: Json) -> None:
        """For requests that refer to this response."""
        self._known.responses[response["id"]] = [*question.messages[question.instructions :], turn.message]
        self._known.items |= {item["id"]: item for item in response.get("output", ())}

    def _decide(self, number: int, role: str, stop: StopReason | None, refusal: RefusedError | None) -> None:
        """How the episode ends if nothing is asked any more. Of parallel questions the last to come counts."""
        if number < self._decided:
            return
        self._decided, self.refusal = number, refusal
        if stop is not None or role in ("agent", self._stopped):
            self.stop, self._stopped = stop, role

    def _say(self, dialect: Dialect, question: Question) -> None:
        """Log what isn't honoured as the request has it, each field once."""
        api = dialect.__name__.rpartition(".")[2]
        ignored = [name for name in question.ignored if f"{api}.{name}" not in self.said]
        if len(self.said) > MOST_SAID:  # The commands of a model may send any names.
            ignored = []
        shown = [name for name in question.hints if f"{api}:{name}" not in self.said]
        self.said |= {f"{api}.{name}" for name in ignored[:MOST_SAID]} | {f"{api}:{name}" for name in shown}
        unknown = [name for name in ignored if name not in dialect.FIELDS.ignored]
        if known := [name for name in ignored if name not in unknown]:
            _log.info("%s: ignored: %s", api, ", ".join(known))
        if unknown:
            _log.warning("%s: unknown fields, which are ignored: %.300s", api, ", ".join(map(ascii, unknown)))
        if shown:
            _log.warning("%s: told to the model and not enforced: %s", api, ", ".join(shown))

    async def close(self) -> None:
        """Stop sampling, and leave no request unanswered."""
        for reply in self._replies.values():
            reply.task.cancel()
        if self._replies:
            await asyncio.wait([reply.task for reply in self._replies.values()])
        for _ in range(2):
            if self.handlers:
                await asyncio.wait(self.handlers, timeout=CLOSE_SECONDS)
            for handler in self.handlers:
                handler.cancel()


def _gone(task: asyncio.Task[Json]) -> bool:
    """Whether it gives no answer."""
    return bool(task.cancelling()) or (task.done() and (task.cancelled() or task.exception() is not None))
