"""Protocols of what plays an episode: the model, an API that holds it, a harness, what shortens a history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from toolrl.types import CallError, CallRecord, Message, Score, StopReason, Task, ToolCall, ToolSpec, Turn


class Model(Protocol):
    """The model that plays the episode."""

    async def ask(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSpec] = (),
        *,
        role: str = "agent",
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        exact: bool = True,
    ) -> Turn:
        """One more turn of the episode, after these messages: sampled and parsed, its calls unanswered. It is trained
        on the episode's reward, under its role. `max_tokens` and `stop` are limits besides the run's.

        Messages that go on from an earlier turn extend its very tokens, also where the chat template would render that
        turn in another way, such as without its thinking. With `exact=False`, or where those tokens leave no room, they
        are rendered as the template does.

        Raises ContextFullError where the messages leave no room, TurnsExhaustedError where a harness had
        `environments.*.max_turns` turns of the role `agent`, and EpisodeEndedError when the episode has ended: all are
        a ToolError. A cancelled question leaves nothing."""
        ...

    def count(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """The tokens of the prompt that these messages make, as the chat format renders them. Nothing is asked."""
        ...


class EpisodeTools(Protocol):
    """The tools of the episode's environment, for a harness."""

    def specs(self) -> Sequence[ToolSpec]:
        """Those that the task selects."""
        ...

    async def answer(self, items: Sequence[ToolCall | CallError]) -> Sequence[CallRecord]:
        """Answer a turn's items, each with its policy's retries and time limits. `toolrl.parsing.items.tool_messages`
        makes messages of the records."""
        ...


@runtime_checkable
class ChatEngine(Protocol):
    """A model behind an API, in the place of a `RolloutEngine`. It answers messages and shows neither tokens nor
    log-probabilities, so it can be evaluated and not trained: its trajectories hold turns and messages, and no tokens.
    Its options model has the property `replaces`, a mapping from `trainers`, `chat_formats` and `parsers` to components
    that stand in the place of the config's. May raise RunStoppedError where every further request would fail."""

    async def start(self) -> None: ...

    def trajectory(self, environment: Any, limits: Any, numbers: Any, session: str, role: str) -> Any:
        """An empty `toolrl.rollouts.trajectory.TrajectoryRun` that asks the API for its turns; the arguments are its
        constructor's, without an engine. Its `result` has no tokens."""
        ...

    async def close(self, session: str) -> None:
        """Forget a session. Unknown sessions are fine."""
        ...

    async def stop(self) -> None: ...


@dataclass
class EpisodeContext:
    """What the tools of one episode share. Made when the episode starts, gone when it ends."""

    episode_id: str
    task: Task
    random: random.Random
    """Seeded by the run's seed, the task and the index in the group: the only source of chance a tool should use."""
    shared: dict[str, Any] = field(default_factory=dict)
    """Anything: frames that one tool extracts and another reads."""
    training: bool = True
    """False in evaluation."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What tools hand on to rewards, observers and the record: it becomes `Episode.notes`. Numbers, texts, lists, and
    mappings with texts as keys; anything else fails the episode."""
    model: Model | None = None
    """To be asked by sub-agents, simulated users and their like; None where no model plays."""
    tools: EpisodeTools | None = None
    """For a harness that wants to use them; else None."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a harness ended its episode."""

    answer: str | None = None
    """The final answer, for rewards that compare it: `Episode.answer`. None takes what an end flag found in the agent's
    last turn."""
    score: Score | None = None
    """The harness's own, added to those of the environment's rewards under the name `harness`."""
    stop: StopReason = "final"


class Harness(Protocol):
    """Plays an episode in the place of toolrl's turn loop: an agent whose loop somebody else wrote. One object a
    process, shared by all its episodes. May have `start` and `stop`, as `StartsAndStops` says."""

    async def play(self, task: Task, model: Model, episode: EpisodeContext) -> Outcome:
        """Play it to its end. The task's messages are those that the turn loop would begin with: system prompt and
        opening messages included. Each question to `model` is a turn of the episode; one at least is asked. The
        toolsets' `respond` isn't: what follows a turn without a call is the harness's to decide.

        What is raised fails the episode, but for the errors of `Model.ask`: ContextFullError ends it as `context_full`,
        TurnsExhaustedError as `max_turns`. Where it is cancelled, it leaves nothing running."""
        ...


@runtime_checkable
class RewritesHistory(Protocol):
    """What a tool session may give besides: a shorter history in the turn loop."""

    async def rewrite(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], tokens: int, limit: int
    ) -> Sequence[Message] | None:
        """The messages for the next turn, or None to go on with these. Asked before each turn that a message begins,
        except the first; also where the history no longer fits. `messages` are all so far, the answers to the last turn
        included. Their prompt, with `tools`, has so many `tokens`; a trajectory has `limit` at most. Meanwhile
        `EpisodeContext.model` may be asked: a question that begins with `messages` extends their trajectory."""
        ...
