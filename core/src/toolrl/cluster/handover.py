"""Weights from a courier to the workers' lines: whatever happens to some of them, those who live get all of it.

Most couriers make weights ready for each worker to fetch. One whose workers must be there at the same time has
`passing`: what it sends is broken off for all when one of them is lost, and made again for the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, runtime_checkable

from toolrl.cluster.line import Line, WorkerLostError
from toolrl.cluster.messages import Handoff, TransferBrokenError
from toolrl.errors import EngineError
from toolrl.protocols import WeightSource

MOST_TRIES = 3
"""Transfers in a row that break off though no worker was lost, before the run ends."""

_log = logging.getLogger(__name__)


class Courier(Protocol):
    """Makes weights ready for the workers to fetch."""

    async def publish(self, weights: WeightSource, version: int) -> Handoff:
        """These weights. Those of the version before the last may be deleted."""
        ...

    def close(self) -> None:
        """Delete what is left."""
        ...


class Passing(Protocol):
    """A transfer to some workers at once."""

    @property
    def parts(self) -> Sequence[Handoff]:
        """What each of them is told."""
        ...

    def break_off(self) -> None:
        """End it for all of them; they raise TransferBrokenError. Twice is once."""
        ...


@runtime_checkable
class Passes(Protocol):
    """A courier that sends to workers who are there at the same time."""

    def passing(
        self, handoff: Handoff, members: Sequence[object], *, lasting: bool
    ) -> AbstractAsyncContextManager[Passing]:
        """While this is entered the weights are sent to these members. A `lasting` group is kept for the next time."""
        ...


async def hand_over(courier: Courier, handoff: Handoff, lines: Sequence[Line]) -> None:
    """To all these workers; one that is lost meanwhile is left to its place's own task. Raises EngineError where
    weights don't arrive as they were sent."""
    broken = 0
    while lines:
        handles = [line.handle for line in lines]
        async with _passing(courier, handoff, lines) as passing:
            ways = zip(lines, passing.parts, strict=True)
            found = await asyncio.gather(*(_one(line, handoff, part, passing) for line, part in ways))
        lost = [line for line, failure in zip(lines, found, strict=True) if isinstance(failure, WorkerLostError)]
        again = [
            line
            for line, handle, failure in zip(lines, handles, found, strict=True)
            # Another process may be starting in its place by now, and gets the weights there.
            if isinstance(failure, TransferBrokenError) and line.state == "ready" and line.handle is handle
        ]
        reason = next((it for it in found if isinstance(it, TransferBrokenError)), None)
        if reason is not None:
            broken = 0 if lost else broken + 1
            if broken >= MOST_TRIES:
                raise EngineError(
                    f"the weights of version {handoff.version} broke off {broken} times on their way to the workers, "
                    f"and none of them died: {reason.message}",
                    where=reason.where,
                    hint=reason.hint,
                )
            _log.warning(
                "the transfer of version %d broke off (%s); it is made again for %d rollout workers",
                handoff.version,
                f"rollout worker {lost[0].number} was lost" if lost else reason.message,
                len(again),
            )
        lines = again


async def _one(line: Line, handoff: Handoff, part: Handoff, passing: Passing) -> Exception | None:
    """What kept it from one worker; None when it has arrived."""
    try:
        await line.update(handoff, part)
    except (WorkerLostError, TransferBrokenError) as error:
        passing.break_off()
        return error
    return None


@asynccontextmanager
async def for_one(courier: Courier, handoff: Handoff, member: Any) -> AsyncIterator[Handoff]:
    """What one worker is told, by itself. Raises WorkerLostError where that breaks off: only another process in its
    place could still get them."""
    if not isinstance(courier, Passes):
        yield handoff
        return
    async with courier.passing(handoff, [member], lasting=False) as passing:
        try:
            yield passing.parts[0]
        except TransferBrokenError as error:
            raise WorkerLostError(f"it couldn't be sent the weights: {error.message}") from error


def _passing(courier: Courier, handoff: Handoff, lines: Sequence[Line]) -> AbstractAsyncContextManager[Passing]:
    if isinstance(courier, Passes):
        return courier.passing(handoff, [line.handle for line in lines], lasting=True)
    return _each_by_itself(handoff, len(lines))


@asynccontextmanager
async def _each_by_itself(handoff: Handoff, members: int) -> AsyncIterator[Passing]:
    yield _ByItself([handoff] * members)


class _ByItself:
    """Parts that are fetched one without the other."""

    def __init__(self, parts: Sequence[Handoff]) -> None:
        self.parts = parts

    def break_off(self) -> None:
        """Each fetches its own."""
