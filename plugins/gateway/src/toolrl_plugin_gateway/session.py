"""One episode as its agent's requests see it: what was asked, what was answered, and how it may end."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolrl.errors import ChatFormatError, ContextFullError, EpisodeEndedError, ToolError, TurnsExhaustedError
from toolrl.protocols import EpisodeContext, Model
from toolrl.types import Message, Score, StopReason, Task
from toolrl_plugin_gateway.dialect import Answer, Dialect, Json, RefusedError

CLOSE_SECONDS = 1.0
"""How long the handlers of an ended episode may take to send their last bytes."""


@dataclass
class Reply:
    """An answer on its way, or given: requests that are retried join it."""

    task: asyncio.Task[Json]
    waiting: int = 0


@dataclass
class Session:
    """One episode behind the gateway. `key` is what its requests carry."""

    id: str
    """Unique among those of its gateway."""
    task: Task
    model: Model
    context: EpisodeContext
    roles: Mapping[str, str] = field(default_factory=dict)
    """By model name: who is asked; `agent` for names that aren't there."""
    asked: set[str] = field(default_factory=set)
    """The models' names in requests; shared by all sessions of a gateway."""
    key: str = field(default_factory=lambda: f"sk-toolrl-{secrets.token_hex(16)}")
    counts: Counter[str] = field(default_factory=Counter)
    """`requests`, `replayed`, `refused`."""
    score: Score | None = None
    """What the agent itself reported."""
    stop: StopReason | None = None
    """The limit for which the last question was refused."""
    failure: Exception | None = None
    """Why the model can't be asked any more."""
    handlers: set[asyncio.Task[Any]] = field(default_factory=set)
    _replies: dict[bytes, Reply] = field(default_factory=dict)
    _responses: dict[str, list[Message]] = field(default_factory=dict)
    """Conversations of the responses API, by response."""

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
        try:
            question = dialect.read(body, self._responses)
            self.asked.add(question.model)
            role = self.roles.get(question.model, "agent")
            limits: dict[str, Any] = {"max_tokens": question.max_tokens, "stop": question.stop}
            turn = await self.model.ask(question.messages, question.tools, role=role, **limits)
        except RefusedError:
            raise
        except ContextFullError as error:
            self.stop = "context_full"
            text = f"prompt is too long: this model's maximum context length is reached. {error.message}"
            raise RefusedError(400, "context_length_exceeded", text) from error
        except TurnsExhaustedError as error:
            self.stop = "max_turns"
            raise RefusedError(400, "turns_exhausted", error.message) from error
        except EpisodeEndedError as error:
            raise RefusedError(410, "episode_ended", error.message) from error
        except (ChatFormatError, ToolError) as error:
            raise RefusedError.invalid(str(error)) from error
        except Exception as error:
            self.failure = error
            raise RefusedError(500, "engine_failed", f"the model failed: {error}") from error
        response = dialect.write(body, Answer.of(turn, question.stop))
        self._responses[response["id"]] = [*question.messages[question.instructions :], turn.message]
        self.stop = None
        return response

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
