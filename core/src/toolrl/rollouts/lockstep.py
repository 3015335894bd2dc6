"""Makes an engine's results depend on its requests alone, and not on their timing.

An engine that batches computes the same request in another batch by other kernels, which shows in the last bits; and
which requests meet in a batch depends on how long tools and threads happen to take. Here nothing is handed on until
every episode in flight has either asked or ended. Then all requests go to the engine at once, in the order of their
sessions' names, and no answer goes back before all are there; sessions are closed between such waves only. With tools
that answer the same to the same arguments, every wave of a run is that of its repetition, and so is every bit.

The price: a wave takes as long as its longest request and the slowest tool call before it. And every episode in flight
needs a session of its tools: where a toolset has few, `rollout.concurrency` must not be above their number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from toolrl.protocols import HoldsStill, RolloutEngine
from toolrl.types import Generation, Sampling


class _Engine(RolloutEngine, HoldsStill, Protocol):
    pass


_log = logging.getLogger(__name__)
_PATIENCE = 300.0
"""Seconds: longer than a session takes to open."""

_Request = tuple[Sequence[int], Sampling, Sequence[Any]]


class Lockstep:
    """Stands between the episodes of one round and their engine. `expected` says how many episodes are in flight, those
    counted that are about to start."""

    def __init__(self, engine: _Engine, expected: Callable[[], int]) -> None:
        self._engine = engine
        self._expected = expected
        self._asked: dict[str, tuple[_Request, asyncio.Future[Generation]]] = {}
        self._closing: set[str] = set()
        self._wave: asyncio.Task[None] | None = None
        self._warned = False

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[Any] = ()
    ) -> Generation:
        """As the engine's, once every episode has asked."""
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._asked[session] = ((prompt, sampling, media), answer)
        self.start_if_complete()
        alarm = asyncio.get_running_loop().call_later(_PATIENCE, self._warn, session)
        try:
            return await answer
        finally:
            alarm.cancel()
            if self._asked.get(session, (None, None))[1] is answer:
                del self._asked[session]

    async def close(self, session: str) -> None:
        """Forget a session before the next wave."""
        self._closing.add(session)

    def start_if_complete(self) -> None:
        """Start a wave if no request is missing; to be called whenever `expected` has changed."""
        if self._wave is not None or not self._asked:
            return
        # An episode with several trajectories has several sessions: `<episode>/1` and so on.
        asked = len({head + tail.partition("/")[0] for head, _, tail in (it.rpartition("#") for it in self._asked)})
        if asked >= self._expected():
            self._wave = asyncio.create_task(self._run())

    def _warn(self, session: str) -> None:
        if session in self._asked and not self._warned:
            self._warned = True
            _log.warning(
                "with `deterministic` %d of %d episodes have waited %g s for the others to ask, which may wait for a "
                "session of their tools: set rollout.concurrency to the number of sessions",
                len(self._asked),
                self._expected(),
                _PATIENCE,
            )

    async def end(self) -> None:
        """After the last episode: close what is to be closed; cancel what still runs."""
        if self._wave is not None:
            self._wave.cancel()
            await asyncio.gather(self._wave, return_exceptions=True)
        await self._close_sessions()

    async def _run(self) -> None:
        asked, self._asked = sorted(self._asked.items()), {}
        work: list[asyncio.Task[Generation]] = []
        try:
            await self._close_sessions()
            async with self._engine.hold():
                for session, ((prompt, sampling, media), _) in asked:
                    asking = self._engine.generate(prompt, sampling, session=session, media=media)
                    work.append(asyncio.create_task(asking))
                # Each has handed its request over when it waits for the first time.
                await asyncio.sleep(0)
            await asyncio.wait(work)
        except BaseException as error:
            for job in work:
                job.cancel()
            for _, (_, answer) in asked:
                _settle(answer, error)
            if not isinstance(error, Exception):
                raise
        else:
            for (_, (_, answer)), job in zip(asked, work, strict=True):
                _settle(answer, _outcome(job))
        finally:
            self._wave = None
        self.start_if_complete()

    async def _close_sessions(self) -> None:
        closing, self._closing = sorted(self._closing), set()
        for session in closing:
            await self._engine.close(session)


def _outcome(job: asyncio.Task[Generation]) -> Generation | BaseException:
    """What came of a task that is done."""
    if job.cancelled():
        return asyncio.CancelledError()
    return job.exception() or job.result()


def _settle(answer: asyncio.Future[Generation], outcome: Generation | BaseException) -> None:
    if answer.done():  # The caller was cancelled meanwhile.
        return
    if isinstance(outcome, asyncio.CancelledError):
        answer.cancel()
    elif isinstance(outcome, BaseException):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
