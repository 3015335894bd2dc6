"""One episode: prompt, turns, calls, scores.

    PENDING → GENERATING → CALLING_TOOLS → GENERATING … → SCORING → RELEASED

Each episode is a coroutine of its own, so none waits for another's tool. Its tokens live in an append-only buffer: what
was sampled is never decoded and encoded again. Whatever goes wrong on the way ends this episode alone: the exception
is kept on `Episode.failure` with whose fault it was, and the trainer leaves such an episode out. Only a cancellation
and an `ExactnessError`, which is a bug and no data, leave `run`.
"""

from __future__ import annotations

import contextlib
import enum
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from toolrl.chat.buffer import TokenBuffer
from toolrl.errors import ExactnessError, ToolsetError
from toolrl.parsing.items import tool_messages
from toolrl.protocols import EpisodeContext
from toolrl.rollout.environment import Environment, Limits
from toolrl.rollout.notes import plain_notes
from toolrl.rollout.scoring import EpisodeReward, failure_of, score_of
from toolrl.rollout.turn import TurnReader, TurnText
from toolrl.tools.cancellation import Watch
from toolrl.tools.toolbox import ToolBoxSession
from toolrl.types import (
    CallError,
    Episode,
    EpisodeFailure,
    Generation,
    MediaInput,
    Message,
    ParsedTurn,
    Sampling,
    StopReason,
    Task,
    ToolCall,
    Turn,
)


class State(enum.Enum):
    """Where an episode is."""

    PENDING = "pending"
    GENERATING = "generating"
    CALLING_TOOLS = "calling_tools"
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


_FAULTS = {State.PENDING: "tool", State.GENERATING: "engine", State.CALLING_TOOLS: "tool", State.SCORING: "reward"}


class SamplesEpisodes(Protocol):
    """What an episode needs of an engine."""

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation: ...

    async def close(self, session: str) -> None: ...


class EpisodeRun:
    """Runs one episode once. `state` may be read while it runs."""

    def __init__(
        self,
        plan: EpisodePlan,
        environment: Environment,
        engine: SamplesEpisodes,
        limits: Limits,
        *,
        hide: Callable[[str], str] = str,
        waiting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        """`hide` takes secrets out of a failure's text; `waiting` is around each wait for a toolset's turn."""
        self.plan = plan
        self._id = plan.id
        self.environment = environment
        self.engine = engine
        self.limits = limits
        self._hide = hide
        self._waiting = waiting
        self.state = State.PENDING
        self._buffer = TokenBuffer()
        self._reader = TurnReader(environment.parser, environment.end_flags)
        self._random = random.Random(plan.seed)
        self._turns: list[Turn] = []
        self._messages: list[Message] = []
        self._reward = EpisodeReward(environment.rewards, environment.call_cost)
        self._media: list[MediaInput] = []
        self._routes = b""
        self._handed_on: dict[str, Any] = {}
        """`EpisodeContext.notes`, which the tools fill."""
        self._notes: dict[str, Any] | None = None
        self._calls = 0
        self._answer: str | None = None
        self._in_thinking = False
        self._started = 0.0
        self._scored: Episode | None = None
        """As the rewards saw it: with all tokens and turns."""

    async def run(self) -> Episode:
        """The finished episode. Raises only CancelledError and ExactnessError."""
        self._started = time.perf_counter()
        failure: EpisodeFailure | None = None
        stop: StopReason = "error"
        watch = Watch()
        try:
            stop = await self._converse()
            self._notes = plain_notes(self._handed_on, self._hide)
            self.state = State.SCORING
            await self._score(stop)
        except ExactnessError:
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

    def _keep_notes(self) -> None:
        """Of an episode that failed: those that can be kept are."""
        if self._notes is None:
            with contextlib.suppress(ToolsetError):
                self._notes = plain_notes(self._handed_on, self._hide)

    async def _close(self) -> EpisodeFailure | None:
        """Let go of the engine's session. An engine that can't is not to hide how the episode ended."""
        watch = Watch()
        try:
            await self.engine.close(self._id)
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
        )
        async with self.environment.tools.open(self.plan.task, context, waiting=self._waiting) as session:
            self._messages = self.environment.opening(self.plan.task)
            self._messages.extend(await session.opening())
            prompt = self.environment.chat.open(self._messages, session.specs())
            self._buffer.prompt(prompt.ids)
            self._media.extend(prompt.media)
            self._in_thinking = prompt.in_thinking
            stop: StopReason | None = None if self._room > 0 else "context_full"
            while stop is None:
                stop = await self._turn(session)
            if self._turns:
                self._reward.add_toolsets(await session.rewards())
            return stop

    async def _turn(self, session: ToolBoxSession) -> StopReason | None:
        """One assistant turn with the answers to it; the reason to end, or None to go on."""
        started = time.perf_counter()
        self.state = State.GENERATING
        text, parsed = await self._generate(session)
        items = tuple([self._identified(item, text) for item in parsed.items])
        turn = Turn(
            index=len(self._turns),
            segments=(text.segment(),),
            items=items,
            calls=(),
            finish=text.finish,
            content=parsed.content,
            reasoning=parsed.reasoning,
            generate_seconds=time.perf_counter() - started,
        )
        self._turns.append(turn)
        calls = tuple([item for item in items if isinstance(item, ToolCall)])
        self._messages.append(Message("assistant", parsed.content, tool_calls=calls, reasoning=parsed.reasoning))
        if parsed.answer is not None:
            self._answer = parsed.answer
            return "answer"
        if not items:
            return await self._without_call(session, turn, text)
        return await self._with_calls(session, turn, text)

    async def _generate(self, session: ToolBoxSession) -> tuple[TurnText, ParsedTurn]:
        """Sample until the turn ends. A parser may go on after a stop string: a fence that is no call."""
        environment, specs = self.environment, session.specs()
        text = TurnText(environment.chat, len(self._buffer))
        while True:
            left = min(self.limits.max_turn_tokens - len(text.ids), self._room)
            sampling = Sampling(
                max_new_tokens=left,
                temperature=self.limits.temperature,
                top_p=self.limits.top_p,
                top_k=self.limits.top_k,
                stop=self._reader.stops(text.text, specs),
                stop_token_ids=tuple(environment.chat.end_ids),
                seed=self._random.getrandbits(63),
            )
            generation = await self.engine.generate(
                self._buffer.ids, sampling, session=self._id, media=tuple(self._media)
            )
            if len(generation.ids) > left:
                raise _wrong_count(generation, left)
            self._buffer.sampled(generation.ids, generation.logprobs, generation.versions)
            self._routes += generation.routes[len(self._routes) :]
            text.extend(generation)
            parsed = self._reader.read(text, specs, in_thinking=self._in_thinking)
            if parsed.status != "continue" or text.stopped_by is None:
                return text, parsed
            if not generation.ids:
                raise _wrong_count(generation, left)  # It would be asked for ever.
            if len(text.ids) >= self.limits.max_turn_tokens or self._room <= 0:
                text.cut()
                return text, self._reader.read(text, specs, in_thinking=self._in_thinking)

    async def _with_calls(self, session: ToolBoxSession, turn: Turn, text: TurnText) -> StopReason | None:
        self.state = State.CALLING_TOOLS
        inline_possible = text.ended_by_string
        started = time.perf_counter()
        records = await session.answer(turn.items, started=started - self._started)
        turn = replace(turn, calls=tuple(records), tool_seconds=time.perf_counter() - started)
        self._turns[-1] = turn
        self._reward.add_turn(turn)
        answers = self.environment.parser.render_results(records)
        messages = tool_messages(records) if isinstance(answers, str) else answers
        self._messages.extend(messages)
        if any(record.result.done for record in records):
            return "tool_done"
        if len(self._turns) >= self.environment.max_turns:
            return "max_turns"
        if isinstance(answers, str) and inline_possible:
            return self._inline(turn, answers)
        # An end mark that the model sampled closed the turn: nothing can stand inside it any more, so the results
        # follow it as messages.
        return self._bridge(text, messages, session)

    async def _without_call(self, session: ToolBoxSession, turn: Turn, text: TurnText) -> StopReason | None:
        if text.finish == "abort":
            return "aborted"
        if text.finish == "length":
            return "context_full" if self._room <= 0 else "max_tokens"
        reply = await session.respond(turn)
        if reply is None:
            return "no_call"
        self._reward.add_reply(turn, reply.reward)
        self._messages.extend(reply.messages)
        if reply.done:
            return "tool_done"
        if len(self._turns) >= self.environment.max_turns:
            return "max_turns"
        return self._bridge(text, reply.messages, session)

    def _bridge(self, text: TurnText, messages: Sequence[Message], session: ToolBoxSession) -> StopReason | None:
        bridge = self.environment.chat.bridge(text.ids, messages, session.specs())
        if len(self._buffer) + len(bridge.ids) >= self.limits.max_episode_tokens:
            return "context_full"
        self._media.extend(media.moved(len(self._buffer)) for media in bridge.media)
        self._buffer.given(bridge.ids)
        self._in_thinking = bridge.in_thinking
        return None

    def _inline(self, turn: Turn, answer: str) -> StopReason | None:
        ids = self.environment.chat.inline(answer)
        if len(self._buffer) + len(ids) >= self.limits.max_episode_tokens:
            return "context_full"
        segment = TurnText.tool_segment(answer, len(self._buffer), len(ids))
        self._turns[-1] = replace(turn, segments=(*turn.segments, segment))
        self._buffer.given(ids)
        # A thinking block that the prompt opened was closed before the call, or the call would be part of it.
        self._in_thinking = False
        return None

    def _identified(self, item: ToolCall | CallError, text: TurnText) -> ToolCall | CallError:
        self._calls += 1
        name, tokens = f"call_{self._calls}", text.token_span(item.span)
        return replace(item, id=name, tokens=tokens)

    # Rewards.

    async def _score(self, stop: StopReason) -> None:
        episode = self._scored = self._episode(stop, None)
        for named in self.environment.rewards:
            if not named.scores_groups:
                # Added as it comes: where a later reward fails, the episode still shows what the others said.
                self._reward.add_score(named, await score_of(named, episode), len(episode.turns))
        self._reward.check()

    # The result.

    @property
    def _room(self) -> int:
        return self.limits.max_episode_tokens - len(self._buffer)

    def _blame(self, error: BaseException) -> EpisodeFailure:
        return failure_of(error, _FAULTS.get(self.state, "toolrl"), self._hide)

    def _episode(self, stop: StopReason, failure: EpisodeFailure | None) -> Episode:
        if self._scored is not None:  # The tokens are the same, and were gone over.
            return replace(
                self._scored,
                stop_reason=stop,
                rewards=tuple(self._reward.entries),
                metrics=dict(self._reward.metrics),
                failure=failure,
                seconds=time.perf_counter() - self._started,
            )
        buffer = self._buffer
        buffer.check()
        return Episode(
            id=self._id,
            task=self.plan.task,
            environment=self.environment.name,
            group=self.plan.group,
            index=self.plan.index,
            ids=buffer.ids,
            loss_mask=buffer.loss_mask,
            logprobs=buffer.logprobs,
            weight_versions=buffer.weight_versions,
            prompt_length=buffer.prompt_length,
            turns=tuple(self._turns),
            messages=tuple(self._messages),
            stop_reason=stop,
            answer=self._answer,
            rewards=tuple(self._reward.entries),
            metrics=dict(self._reward.metrics),
            failure=failure,
            seconds=time.perf_counter() - self._started,
            temperature=self.limits.policy_temperature,
            media=tuple(self._media),
            routes=self._routes or None,
            notes=self._notes or {},
        )


def _wrong_count(generation: Generation, most: int) -> ExactnessError:
    return ExactnessError(
        f"asked for at most {most}, the engine gave {len(generation.ids)} tokens with finish {generation.finish!r}",
        hint="What stops a generation is its last token; toolrl_testing.checks.engines says what else holds.",
    )
