"""The model as the parts of an episode may ask it: a harness, a sub-agent, a player, a simulated user, a summariser.

Each answer is a turn of the episode. Where the messages go on from an earlier turn, its prompt is that turn's tokens as
they were sampled, and what the chat format puts behind them: the turn's trajectory is extended, or forked where another
turn stands there already. All else is rendered: it extends the role's trajectory whose tokens, to the end of its last
turn, are the longest beginning of that prompt, or opens one. What an earlier trajectory sampled is restated as given.
So every sampled token stands behind exactly what the model read, whatever was done to the messages in between.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from toolrl.chat.conversation import in_call_order
from toolrl.errors import (
    ChatFormatError,
    ContextFullError,
    EngineError,
    EpisodeEndedError,
    ToolError,
    ToolrlError,
    TurnsExhaustedError,
)
from toolrl.protocols import ChatFormat
from toolrl.rollouts.matching import Question, TurnEnd, TurnEnds
from toolrl.rollouts.trajectory import TrajectoryRun
from toolrl.tools.cancellation import Watch
from toolrl.tools.toolbox import ToolBoxSession
from toolrl.types import CallError, CallRecord, Message, Rendered, StopReason, ToolCall, ToolSpec, Trajectory, Turn

T = TypeVar("T")
Prepared = tuple[str, int | None, TrajectoryRun]
"""Whether a trajectory is extended, forked or opened, the place of the one that is extended, and the run to sample."""


class EpisodeModel:
    """Follows `Model`, for one episode. `begin` makes an empty trajectory of a role; `max_turns` are those of the role
    `agent`, None for no limit."""

    def __init__(
        self, chat: ChatFormat, begin: Callable[[str], TrajectoryRun], seed: int, max_turns: int | None = None
    ) -> None:
        self._chat = chat
        self._begin = begin
        self._seed = seed
        self._max_turns = max_turns
        self._asked: Counter[bytes] = Counter()
        self._runs: list[TrajectoryRun] = []
        self._lent: list[TrajectoryRun] = []
        """Those of the turn loop among `_runs`."""
        self._busy: set[int | None] = set()
        self._sampling: set[asyncio.Task[Any]] = set()
        self._failure: Exception | None = None
        self._ended = False
        self._agent_turns = 0
        self._last_turn = -1
        """Index of the agent's."""
        self._counts: Counter[str] = Counter()
        self.turn_ends = TurnEnds()
        self.answer: str | None = None
        """What an end flag found in the last turn of the role `agent`."""
        self.cut: StopReason | None = None
        """How the episode ends if the last turn of the role `agent` is its last and was cut: neither whole nor with a
        call."""

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
        """See `Model`."""
        if self._ended:
            raise EpisodeEndedError("the episode has ended: the model can't be asked any more")
        if role == "agent" and self._agent_turns == self._max_turns:
            raise TurnsExhaustedError(f"the agent had its {self._max_turns} turns: environments.*.max_turns")
        question = Question(in_call_order(messages), tools, role)
        made = self._behind_a_turn(question, tools, role) if exact else None
        kind, place, run = made or self._rendered(question, tools, role)
        # Seeded by what is asked, so that parallel questions may come in any order.
        digest = hashlib.blake2b(array("q", run.ids).tobytes(), digest_size=16).digest()
        chance = Random(f"{self._seed}/{role}/{digest.hex()}/{self._asked[digest]}")
        self._asked[digest] += 1
        self._busy.add(place)
        self._agent_turns += role == "agent"
        try:
            turn, answer = await self._sampled(run.turn(tools, chance, max_tokens=max_tokens, stop=stop))
        except BaseException:
            self._agent_turns -= role == "agent"
            raise
        finally:
            self._busy.discard(place)
        if place is None:
            place = len(self._runs)
            self._runs.append(run)
        else:
            self._runs[place].become(run)
        self._counts[kind] += 1
        self.turn_ends.read_answers(question)
        self.answer = answer if role == "agent" else self.answer
        if role == "agent" and turn.index > self._last_turn:
            self._last_turn = turn.index
            self.cut = None if answer is not None else _cut(turn, run.room)
        self.turn_ends.add(question, TurnEnd(place, turn, tuple(run.messages)), _forms(turn, stop))
        return turn

    def count(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        """See `Model`."""
        return len(self._chat.open(messages, tools).ids)

    async def end(self) -> None:
        """Nothing may be asked any more, and what is being sampled is cancelled."""
        self._ended = True
        for job in self._sampling:
            job.cancel()
        await asyncio.gather(*self._sampling, return_exceptions=True)

    @contextmanager
    def lent(self, run: TrajectoryRun, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Iterator[None]:
        """Meanwhile questions may go on from the turn loop's last turn, which is the last of these messages. Raises
        ToolError where one is left unanswered."""
        if run not in self._lent:
            self._lent.append(run)
            self._runs.append(run)
        place = self._runs.index(run)
        end = TurnEnd(place, run.turns[-1], tuple(messages))
        self.turn_ends.add(Question(messages[:-1], tools, run.role), end, messages[-1:])
        self._busy.discard(place)
        try:
            yield
            left = place in self._busy
        finally:
            self._busy.add(place)
        if left:
            raise ToolError("the history was rewritten, and a question about it was left unanswered")

    def check(self) -> None:
        """Raises what failed in the engine or the parser, which is no failure of the part that asked."""
        if self._failure is not None:
            raise self._failure

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Checks in the end, also where the part that asked failed of it."""
        try:
            yield
        except Exception:
            self.check()
            raise
        self.check()

    def results(self) -> list[Trajectory]:
        """By their first turns."""
        found = [run.result() for run in sorted(self._asked_runs, key=lambda run: run.turns[0].index)]
        return [replace(it, turns=tuple(map(self.turn_ends.with_calls, it.turns))) for it in found]

    def turns(self) -> list[Turn]:
        """With the answers to their calls."""
        return [self.turn_ends.with_calls(turn) for run in self._asked_runs for turn in run.turns]

    @property
    def _asked_runs(self) -> list[TrajectoryRun]:
        return [run for run in self._runs if run not in self._lent]

    def metrics(self) -> dict[str, float]:
        """How its questions went on from the turns before; empty where there was none."""
        kinds = ("extended", "forked", "opened") if self._counts else ()
        return {f"model/{kind}": float(self._counts[kind]) for kind in kinds}

    async def _sampled(self, work: Coroutine[Any, Any, T]) -> T:
        """As a task of its own, which ends with the episode at the latest."""
        watch = Watch()
        job = asyncio.create_task(work)
        self._sampling.add(job)
        try:
            result = await job
        except asyncio.CancelledError as error:
            if self._ended and watch.failed(error):
                raise EpisodeEndedError("the episode has ended while the model answered") from None
            raise
        except Exception as error:  # Whoever asked may take it for a failure of its own.
            if isinstance(error, ToolrlError):
                self._failure = error
                raise
            self._failure = EngineError(f"it raised {type(error).__name__}: {error}")
            raise self._failure from error
        finally:
            self._sampling.discard(job)
        if self._ended:
            raise EpisodeEndedError("the episode has ended while the model answered")
        return result

    # The prompt.

    def _behind_a_turn(self, question: Question, tools: Sequence[ToolSpec], role: str) -> Prepared | None:
        """The tokens of the turn that the question goes on from, and what follows them; None where these don't fit."""
        end = self.turn_ends.find(question, self._is_free)
        if end is None or not question.tail:
            return None
        source = self._runs[end.place]
        start, stop = end.turn.segments[-1].tokens
        try:
            given = self._chat.bridge(source.ids[start:stop], question.tail, tools)
        except ChatFormatError:
            return None  # It may be able to render the whole.
        if self._is_free(end):
            kind, place, run = "extended", end.place, source.copy()
        else:
            kind, place, run = "forked", None, self._begin(role)
            run.restate(source, end.tokens)
        run.messages = [*end.messages, *question.tail]
        fits = run.give(given) and run.room > 0
        return (kind, place, run) if fits else None  # The whole may be shorter, without its thinking.

    def _rendered(self, question: Question, tools: Sequence[ToolSpec], role: str) -> Prepared:
        """All messages as the chat format renders them."""
        prompt = self._chat.open(question.messages, tools)
        place = self._longest(prompt, role)
        # A copy, so that a generation that fails or is cancelled leaves nothing.
        run = self._begin(role) if place is None else self._runs[place].copy()
        if not run.extend(prompt) or run.room <= 0:
            text = f"the prompt has {len(prompt.ids)} tokens and leaves no room in rollout.max_episode_tokens"
            raise ContextFullError(text)
        run.messages = list(question.messages)
        return "opened" if place is None else "extended", place, run

    def _is_free(self, end: TurnEnd) -> bool:
        """Whether nothing goes on from this turn yet."""
        return end.place not in self._busy and self._runs[end.place].turns[-1].index == end.turn.index

    def _longest(self, prompt: Rendered, role: str) -> int | None:
        found = [
            (length, place)
            for place, run in enumerate(self._runs)
            if run.role == role and place not in self._busy and (length := run.beginning(prompt))
        ]
        return max(found)[1] if found else None


class AnsweringTools:
    """Follows `EpisodeTools`: answers are recorded with the turn that called."""

    def __init__(self, session: ToolBoxSession, turn_ends: TurnEnds, started: float) -> None:
        """`started` is when the episode began."""
        self._session, self._turn_ends, self._started = session, turn_ends, started

    def specs(self) -> Sequence[ToolSpec]:
        return self._session.specs()

    async def answer(self, items: Sequence[ToolCall | CallError]) -> Sequence[CallRecord]:
        records = await self._session.answer(items, started=time.perf_counter() - self._started)
        self._turn_ends.record(records)
        return records


def _cut(turn: Turn, room: int) -> StopReason | None:
    """As the turn loop ends after such a turn. A call that was read whole can still be answered."""
    if turn.finish == "stop" or any(isinstance(item, ToolCall) for item in turn.items):
        return None
    return "aborted" if turn.finish == "abort" else "context_full" if room <= 0 else "max_tokens"


def _forms(turn: Turn, stop: Sequence[str]) -> list[Message]:
    """In which a client may send it back: calls that couldn't be read are text to it, or nothing, and a stop string
    isn't given to it."""
    broken = [item.raw for item in turn.items if isinstance(item, CallError)]
    texts = [turn.content, "\n".join(part for part in (turn.content, *broken) if part)]
    texts += [text[: min(ends)] for text in texts if (ends := [text.find(it) for it in stop if it in text])]
    return [replace(turn.message, content=text) for text in texts]
