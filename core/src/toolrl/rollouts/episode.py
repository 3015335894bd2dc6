"""One episode: prompt, turns, calls, scores.

    PENDING → GENERATING → CALLING_TOOLS → GENERATING … → SCORING → RELEASED
    PENDING → PLAYING → SCORING → RELEASED, where a harness plays

Each episode is a coroutine of its own, so none waits for another's tool. A `TrajectoryRun` samples its turns. Whatever
goes wrong on the way ends this episode alone: the exception is kept on `Episode.failure` with whose fault it was, and
the trainer leaves such an episode out. Only a cancellation, an `ExactnessError`, which is a bug and no data, and a
`RunStoppedError` leave `run`.
"""

from __future__ import annotations

import contextlib
import enum
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, cast

from toolrl.errors import (
    ContextFullError,
    ExactnessError,
    HarnessError,
    RunStoppedError,
    ToolsetError,
    TurnsExhaustedError,
)
from toolrl.parsing.items import tool_messages
from toolrl.protocols import ChatEngine, EpisodeContext, Harness, Outcome
from toolrl.rollouts.environment import Environment, Limits, NamedReward
from toolrl.rollouts.model import AnsweringTools, EpisodeModel
from toolrl.rollouts.notes import plain_notes
from toolrl.rollouts.scoring import EpisodeReward, failure_of, score_of
from toolrl.rollouts.trajectory import SamplesEpisodes, TrajectoryRun
from toolrl.tools.cancellation import Watch
from toolrl.tools.toolbox import ToolBoxSession
from toolrl.tools.toolset import rewrite_of
from toolrl.types import Episode, EpisodeFailure, Message, Rendered, Score, StopReason, Task, Trajectory, Turn


class State(enum.Enum):
    """Where an episode is."""

    PENDING = "pending"
    GENERATING = "generating"
    CALLING_TOOLS = "calling_tools"
    PLAYING = "playing"
    SCORING = "scoring"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """What to run."""

    task: Task
    group: str
    index: int
    seed: int
    """Of everything in this episode that is left to chance."""
    training: bool = True

    @property
    def id(self) -> str:
        return f"{self.group}#{self.index}"


_INVALID = ("malformed", "unknown_tool", "bad_arguments")
"""Errors of calls that the model got wrong: none of them was run."""
_FAULTS = {
    State.PENDING: "tool",
    State.GENERATING: "engine",
    State.CALLING_TOOLS: "tool",
    State.PLAYING: "harness",
    State.SCORING: "reward",
}


class EpisodeRun:
    """Runs one episode once. `state` may be read while it runs."""

    def __init__(
        self,
        plan: EpisodePlan,
        environment: Environment,
        engine: SamplesEpisodes | ChatEngine,
        limits: Limits,
        *,
        hide: Callable[[str], str] = str,
    ) -> None:
        """`hide` takes secrets out of a failure's text."""
        self.plan = plan
        self._id = plan.id
        self.environment = environment
        self.engine = engine
        self.limits = limits
        self._hide = hide
        self.state = State.PENDING
        self._random = random.Random(plan.seed)
        self._numbers = count(), count(1)
        self._sessions: list[str] = []
        self._run = self._trajectory("agent")
        most = environment.max_turns if environment.harness is not None else None
        self._model = EpisodeModel(environment.chat, self._trajectory, plan.seed, most)
        self._earlier: list[TrajectoryRun] = []
        """Of the conversation, before its history was rewritten."""
        self._turns = 0
        """Of the conversation; questions to the model aren't among them."""
        self._invalid_turns = 0
        """The last so many, none of whose calls could be run."""
        self._reward = EpisodeReward(environment.rewards, environment.call_cost)
        self._handed_on: dict[str, Any] = {}
        """`EpisodeContext.notes`, which the tools fill."""
        self._notes: dict[str, Any] | None = None
        self._answer: str | None = None
        self._harness_score: Score | None = None
        self._started = 0.0
        self._scored: Episode | None = None
        """As the rewards saw it: with all tokens and turns."""

    async def run(self) -> Episode:
        """The finished episode. Raises only CancelledError, ExactnessError and RunStoppedError."""
        self._started = time.perf_counter()
        failure: EpisodeFailure | None = None
        stop: StopReason = "error"
        watch = Watch()
        try:
            with self._model.blamed():
                stop = await self._converse()
            self._notes = plain_notes(self._handed_on, self._hide)
            self.state = State.SCORING
            await self._score(stop)
        except (ExactnessError, RunStoppedError):
            raise
        except BaseException as error:  # every failure of a component is this episode's data
            if not watch.failed(error):
                raise
            failure, stop = self._blame(error), "error"
            self._keep_notes()
        finally:
            unclosed = await self._close()
            self.state = State.RELEASED
        return self._episode("error", failure or unclosed) if unclosed else self._episode(stop, failure)

    def _trajectory(self, role: str) -> TrajectoryRun:
        self._sessions.append(f"{self._id}/{len(self._sessions)}" if self._sessions else self._id)
        more = (self.limits, self._numbers, self._sessions[-1], role)
        if isinstance(self.engine, ChatEngine):
            run: TrajectoryRun = self.engine.trajectory(self.environment, *more)
            return run
        return TrajectoryRun(self.environment, self.engine, *more)

    def _keep_notes(self) -> None:
        """Of an episode that failed: those that can be kept are."""
        if self._notes is None:
            with contextlib.suppress(ToolsetError):
                self._notes = plain_notes(self._handed_on, self._hide)

    async def _close(self) -> EpisodeFailure | None:
        """Let go of the engine's sessions. An engine that can't is not to hide how the episode ended."""
        watch = Watch()
        try:
            await self._model.end()
            for session in self._sessions:
                await self.engine.close(session)
        except BaseException as error:
            if not watch.failed(error):
                raise
            self.state = State.GENERATING
            return self._blame(error)
        return None

    # The conversation.

    async def _converse(self) -> StopReason:
        context = EpisodeContext(
            self._id,
            self.plan.task,
            random.Random(self._random.getrandbits(64)),
            training=self.plan.training,
            notes=self._handed_on,
            model=self._model,
        )
        async with self.environment.tools.open(self.plan.task, context) as session:
            self._run.messages += self.environment.opening(self.plan.task)
            self._run.messages += await session.opening()
            if self.environment.harness is not None:
                stop: StopReason | None = await self._play(self.environment.harness, session, context)
            else:
                stop = self._run.open(session.specs())
            while stop is None:
                stop = await self._turn(session)
            for turn in self._model.turns():
                if turn.calls:
                    self._reward.add_turn(turn)
            if self._turns or self.environment.harness is not None:
                self._reward.add_toolsets(await session.rewards())
            return stop

    async def _play(self, harness: Harness, session: ToolBoxSession, context: EpisodeContext) -> StopReason:
        """The harness plays the episode, from the messages that the turn loop would begin with."""
        self.state = State.PLAYING
        context.tools = AnsweringTools(session, self._model.turn_ends, self._started)
        where = f"environments.{self.environment.name}.harness"
        try:
            outcome = await harness.play(
                replace(self.plan.task, messages=tuple(self._run.messages)), self._model, context
            )
        except (ContextFullError, TurnsExhaustedError) as error:
            outcome = Outcome(stop="max_turns" if isinstance(error, TurnsExhaustedError) else "context_full")
        except HarnessError:
            raise
        except Exception as error:
            raise HarnessError(f"it raised {type(error).__name__}: {error}", where=where) from error
        if not isinstance(outcome, Outcome):
            raise HarnessError(
                f"play() gave {type(outcome).__name__} {outcome!r:.80}, expected an Outcome", where=where
            )
        if not self._model.turns() and outcome.stop != "context_full":
            text = f"it ended as {outcome.stop!r} without asking the model: there is nothing to train on"
            raise HarnessError(text, where=where)
        self._answer = self._model.answer if outcome.answer is None else outcome.answer
        self._harness_score = outcome.score
        # A harness may not know that the last turn was cut.
        return self._model.cut or outcome.stop if outcome.stop in ("final", "max_tokens") else outcome.stop

    async def _turn(self, session: ToolBoxSession) -> StopReason | None:
        """One assistant turn with the answers to it; the reason to end, or None to go on."""
        self.state = State.GENERATING
        turn, answer = await self._run.turn(session.specs(), self._random)
        self._turns += 1
        if answer is not None:
            self._answer = answer
            return "answer"
        if not turn.items:
            return await self._without_call(session, turn)
        return await self._with_calls(session, turn)

    async def _with_calls(self, session: ToolBoxSession, turn: Turn) -> StopReason | None:
        self.state = State.CALLING_TOOLS
        run = self._run
        started = time.perf_counter()
        records = await session.answer(turn.items, started=started - self._started)
        self._model.check()
        turn = run.turns[-1] = replace(turn, calls=tuple(records), tool_seconds=time.perf_counter() - started)
        self._reward.add_turn(turn)
        answers = self.environment.parser.render_results(records)
        messages = tool_messages(records) if isinstance(answers, str) else answers
        run.messages.extend(messages)
        if any(record.result.done for record in records):
            return "tool_done"
        invalid = all(record.result.error in _INVALID for record in records)
        self._invalid_turns = self._invalid_turns + 1 if invalid else 0
        if self._invalid_turns == self.environment.max_invalid_turns:
            return "invalid_calls"
        if self._turns >= self.environment.max_turns:
            return "max_turns"
        if isinstance(answers, str) and run.text.ended_by_string:
            return run.inline(answers)
        # An end mark that the model sampled closed the turn: nothing can stand inside it any more, so the results
        # follow it as messages.
        return await self._give(session, messages)

    async def _without_call(self, session: ToolBoxSession, turn: Turn) -> StopReason | None:
        run = self._run
        if turn.finish == "abort":
            return "aborted"
        if turn.finish == "length":
            return "context_full" if run.room <= 0 else "max_tokens"
        reply = await session.respond(turn)
        if reply is None:
            return "final"
        self._invalid_turns = 0
        self._reward.add_reply(turn, reply.reward)
        run.messages.extend(reply.messages)
        if reply.done:
            return "tool_done"
        if self._turns >= self.environment.max_turns:
            return "max_turns"
        return await self._give(session, reply.messages)

    async def _give(self, session: ToolBoxSession, given: Sequence[Message]) -> StopReason | None:
        """The prompt of the next turn: `given`, the conversation's last messages, behind the last turn; or a history
        that was rewritten, in a trajectory of its own where it doesn't go on from this one's tokens."""
        run = self._run
        messages, prompt = tuple(run.messages), run.continued(given, session.specs())
        if session.rewriters:
            self.state = State.CALLING_TOOLS
            with self._model.lent(run, messages[: len(messages) - len(given)], session.specs()):
                messages, prompt = await self._rewritten(session, messages, prompt)
        if len(prompt.ids) >= self.limits.max_episode_tokens:
            return "context_full"
        if not run.beginning(prompt):
            self._earlier.append(run)
            run = self._run = self._trajectory(run.role)
        run.extend(prompt)
        run.messages = list(messages)
        return None

    async def _rewritten(
        self, session: ToolBoxSession, messages: tuple[Message, ...], prompt: Rendered
    ) -> tuple[tuple[Message, ...], Rendered]:
        """Each rewriter has what the one before it made."""
        specs, limit = session.specs(), self.limits.max_episode_tokens
        for item, rewriter in session.rewriters:
            ask = partial(rewrite_of, rewriter, messages, specs, len(prompt.ids), limit)
            made = await item.ask("rewriting the history", ask)
            if made is not None:
                messages, prompt = made, self.environment.chat.open(made, specs)
            count, key = self._reward.metrics, f"tool/{item.entry.name}/rewrites"
            count[key] = count.get(key, 0.0) + (made is not None)
        return messages, prompt

    # Rewards.

    async def _score(self, stop: StopReason) -> None:
        episode = self._scored = self._episode(stop, None)
        if self._harness_score is not None:
            named = NamedReward("harness", cast(Any, self.environment.harness))
            self._reward.add_score(named, self._harness_score, episode)
        for named in self.environment.rewards:
            if not named.scores_groups:
                # Added as it comes: where a later reward fails, the episode still shows what the others said.
                self._reward.add_score(named, await score_of(named, episode), episode)
        self._reward.check()

    # The result.

    def _blame(self, error: BaseException) -> EpisodeFailure:
        return failure_of(error, _FAULTS.get(self.state, "toolrl"), self._hide)

    def _trajectories(self) -> tuple[Trajectory, ...]:
        """By their first turns; where there is no turn, the conversation's."""
        own = [run.result() for run in (*self._earlier, self._run)]
        found = [it for it in (*own, *self._model.results()) if it.turns]
        return tuple(sorted(found, key=lambda it: it.turns[0].index)) or (own[0],)

    def _episode(self, stop: StopReason, failure: EpisodeFailure | None) -> Episode:
        # What was scored has the same tokens, and they were gone over.
        episode = self._scored or Episode(
            id=self._id,
            task=self.plan.task,
            environment=self.environment.name,
            group=self.plan.group,
            index=self.plan.index,
            trajectories=self._trajectories(),
            stop_reason=stop,
            answer=self._answer,
            temperature=self.limits.policy_temperature,
            notes=self._notes or {},
        )
        return replace(
            episode,
            stop_reason=stop,
            rewards=tuple(self._reward.entries),
            metrics=self._reward.metrics | self._model.metrics(),
            failure=failure,
            seconds=time.perf_counter() - self._started,
        )
