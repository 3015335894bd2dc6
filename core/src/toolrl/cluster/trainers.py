"""The trainer workers of a run: started together, watched over, and begun again together when one of them dies.

The ranks of a process group can't go on without each other, and one that has lost another may wait in a collective for
long. So when a worker's process is gone without a word, or says nothing any more, all others are ended at once and a
new group goes on from the last checkpoint; the run folder is wound back to it, so that nothing is counted twice. What a
rank tells before it ends is no death: an error of the program ends the run with that error, and is not tried again.

    one generation:   place all → start all → listen, until one has ended → decide

Nothing here knows ray: `toolrl.cluster.ray_trainers` places the workers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from toolrl.cluster.line import FIRST_WARNING, Handle, WorkerLostError
from toolrl.cluster.messages import unpack_error
from toolrl.cluster.trainer_messages import Began, Counted, Ended, Output, Place, StepDone, TrainerOrder
from toolrl.errors import RunStoppedError
from toolrl.loop.ranks import LostRanksError, OtherRankError

POLL_SECONDS = 5.0
GRACE_SECONDS = 15.0
"""For the other ranks to say how they ended, once one has told an error: longer than they look for another's."""
END_SECONDS = 120.0
"""For the other ranks to end, once one has ended well or was interrupted."""
GONE_SECONDS = 15.0
"""For a worker to end its process."""
Telling = Callable[[Callable[[], Mapping[str, Any]]], AbstractAsyncContextManager[None]]
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM)

_log = logging.getLogger(__name__)


@dataclass
class Member:
    """A trainer worker's place."""

    rank: int
    handle: Handle | None = None
    state: str = "placing"
    place: Place | None = None
    pid: int | None = None
    step: int | None = None
    """The last that it finished."""
    doing: str = ""
    ended: Ended | None = None

    def status(self) -> dict[str, Any]:
        """As JSON values."""
        where = {"node": self.place.node, "address": self.place.address} if self.place is not None else {}
        facts = {"rank": self.rank, "state": self.state, "pid": self.pid, "step": self.step, "doing": self.doing}
        return {**facts, **where}


@dataclass(frozen=True)
class _Death:
    rank: int
    reason: str


@dataclass
class TrainerGroup:
    """All trainer workers of a run. `run` may be called once."""

    order: TrainerOrder
    """Of the first rank, at the start; the others' differ in their rank."""
    spawn: Callable[[int], Handle]
    """Begins a worker of this rank; returns at once."""
    timeout: float
    """Seconds after which a worker that says nothing is given up; also the time that one has to be placed."""
    restarts: int
    """Deaths that are borne without a new step in between."""
    reason_of_wait: Callable[[], str] = lambda: ""
    write: Callable[[bytes, bytes], None] = field(default=lambda out, err: _print(out, err))
    """Takes what the first rank prints."""
    telling: Telling = lambda gather: nullcontext()
    """While it is entered, what its argument gives is told to whoever asks what the run does."""
    members: list[Member] = field(default_factory=list)
    _deaths: int = 0
    """Since the last new step."""
    _began: bool = False
    _interrupted: bool = False
    _task: asyncio.Task[Any] | None = None
    _telling: list[asyncio.Future[Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.members = [Member(rank) for rank in range(self.order.size)]

    async def run(self) -> int:
        """To the run's end: the exit status. Raises the error that ended a rank, RunStoppedError where workers died too
        often, CancelledError where the run was interrupted."""
        self._task = asyncio.current_task()
        try:
            async with self.telling(self.status):
                while True:
                    death = await self._generation()
                    if death is None:
                        return 0
                    await self._begin_again(death)
        finally:
            await self._stop()

    def interrupt(self) -> None:
        """End the run at the next point where the ranks meet, and save what is done; at once where they don't train
        yet. Call it on the event loop."""
        self._interrupted = True
        running = [it.handle for it in self.members if it.state == "running" and it.handle is not None]
        self._telling = [asyncio.ensure_future(_quietly(_call(it, "signal", int(signal.SIGTERM)))) for it in running]
        if not running and self._task is not None:
            self._task.cancel()

    def status(self) -> dict[str, Any]:
        """What each worker does now."""
        return {"restarts": self.order.restarts, "trainers": [member.status() for member in self.members]}

    # One generation.

    async def _generation(self) -> _Death | None:
        """Start all workers' processes and wait until they end: who died, None where the run is over."""
        try:
            await self._start()
        except _LostError as lost:
            self.members[lost.rank].state = "lost"
            return _Death(lost.rank, lost.reason)
        listening = {member.rank: asyncio.create_task(self._listen(member)) for member in self.members}
        try:
            done, _ = await asyncio.wait(listening.values(), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if not any(member.ended is not None and member.ended.death for member in self.members):
                first = next(member.ended for member in self.members if member.ended is not None)
                patience = GRACE_SECONDS if first.status is None else END_SECONDS
                going = [task for task in listening.values() if not task.done()]
                if going:
                    await self._wait_for_others(going, patience)
        finally:
            for task in listening.values():
                task.cancel()
            await asyncio.gather(*listening.values(), return_exceptions=True)
        return self._verdict()

    async def _wait_for_others(self, going: Sequence[asyncio.Task[None]], patience: float) -> None:
        """Until all have ended, or one has died, or so many seconds have passed."""
        end = asyncio.get_running_loop().time() + patience
        left = set(going)
        while left and (seconds := end - asyncio.get_running_loop().time()) > 0:
            _, left = await asyncio.wait(left, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if any(member.ended is not None and member.ended.death for member in self.members):
                return

    async def _start(self) -> None:
        """Have every worker placed, then every rank's process begun."""
        for member in self.members:
            member.ended, member.pid, member.doing, member.step = None, None, "", None
            member.state = "placing" if member.handle is None else "starting"
            if member.handle is None:
                member.handle = self.spawn(member.rank)
        await _all(self._place(member) for member in self.members)
        first = self.members[0].place
        assert first is not None
        order = replace(self.order, address=first.address, port=first.port, token=secrets.token_hex(32))
        await _all(self._order(member, replace(order, rank=member.rank)) for member in self.members)

    async def _place(self, member: Member) -> None:
        member.place = await self._ask(member, "place", patience=self.timeout)
        member.state = "starting"

    async def _order(self, member: Member, order: TrainerOrder) -> None:
        member.pid = await self._ask(member, "start", order, patience=self.timeout)

    async def _listen(self, member: Member) -> None:
        """Take in what a rank's process prints and tells, until it has ended."""
        while member.ended is None:
            try:
                output: Output = await self._ask(
                    member, "poll", member.pid, POLL_SECONDS, self.timeout, patience=POLL_SECONDS + self.timeout
                )
            except _LostError as lost:
                member.ended = Ended(death=lost.reason)
                member.state = "lost"
                return
            if member.rank == 0 and (output.out or output.err):
                self.write(output.out, output.err)
            member.doing = output.doing or member.doing
            for event in output.events:
                self._take_in(member, event)
            if output.ended is not None:
                member.ended, member.state = output.ended, "dead" if output.ended.death else "ended"

    def _take_in(self, member: Member, event: Began | StepDone | Counted) -> None:
        if isinstance(event, Began):
            member.state = "running"
            if member.rank == 0:
                self._began = True
        elif isinstance(event, StepDone):
            member.step = event.step
            if member.rank == 0 and event.step > self.order.reached:
                self._deaths = 0
                self.order = replace(self.order, reached=event.step)
        else:
            told = event.told if self.order.told is None else self.order.told
            self.order = replace(self.order, told=told, repeated=self.order.repeated + event.repeated)

    def _verdict(self) -> _Death | None:
        """Who died, None where the run ended well. Raises what ended it otherwise."""
        ends: Mapping[int, Ended] = {it.rank: it.ended for it in self.members if it.ended is not None}
        errors = {rank: self._error(rank, end.error) for rank, end in ends.items() if end.error is not None}
        own = [error for error in errors.values() if not isinstance(error, LostRanksError | OtherRankError)]
        if own:
            raise own[0]
        if self._interrupted:
            raise asyncio.CancelledError
        deaths = [_Death(rank, end.death) for rank, end in ends.items() if end.death is not None]
        if deaths and 0 in ends and ends[0].status == 0:
            # All had come to the end by then, so nothing is left to do.
            _log.warning("trainer worker %d %s after the run had ended well", deaths[0].rank, deaths[0].reason)
            return None
        if deaths:
            return deaths[0]
        lost = [error for error in errors.values() if isinstance(error, LostRanksError)]
        silent = [member.rank for member in self.members if member.rank not in ends]
        if lost:
            # All that could tell lost somebody: whoever didn't tell stands still.
            return _Death(silent[0] if silent else 0, f"left the others waiting: {lost[0].message}")
        if errors:
            raise next(iter(errors.values()))
        if any(end.status in INTERRUPTED for end in ends.values()):
            raise asyncio.CancelledError
        if silent and 0 in silent:
            return _Death(silent[0], "didn't end when the others did")
        return None

    def _error(self, rank: int, packed: bytes) -> BaseException:
        error = unpack_error(packed)
        said = self.members[rank].ended
        if said is not None and said.said.startswith("Traceback"):
            error.add_note(f"In trainer worker {rank}:\n{said.said}")
        return error

    # Deaths.

    async def _begin_again(self, death: _Death) -> None:
        """End what is left of a generation, so that another can be started. Raises RunStoppedError where workers died
        too often."""
        words = await self._last_words(self.members[death.rank])
        await asyncio.gather(*map(self._end, self.members))
        self._deaths += 1
        what = f"trainer worker {death.rank} {death.reason}"
        if self._deaths > self.restarts:
            raise RunStoppedError(
                f"{what}, and trainer workers died {self._deaths} times in a row without a new step; {words}",
                hint="Mend the cause, or raise cluster.trainer_restarts; then go on with --resume.",
            )
        _log.warning("%s; all %d go on from the last checkpoint. %s", what, self.order.size, words)
        order = self.order
        # An older run is deleted once, and by nobody who takes the place of another.
        overwrite = order.overwrite and not self._began
        self.order = replace(order, again=True, restarts=order.restarts + 1, resume=not overwrite, overwrite=overwrite)

    async def _last_words(self, member: Member) -> str:
        """The last lines of its log, for a message."""
        lines: Sequence[str] | None = None
        if member.handle is not None and member.state != "lost":
            lines = await _quietly(asyncio.wait_for(_call(member.handle, "last_lines"), GONE_SECONDS))
        if lines is None and member.handle is not None:
            lines = member.handle.last_words()
        return "\n".join(["its last log lines:", *(f"  | {line}" for line in lines)]) if lines else "it logged nothing"

    async def _end(self, member: Member) -> None:
        """End a worker's process; a worker that can't is replaced."""
        handle = member.handle
        if handle is None:
            return
        try:
            if member.state == "lost":
                raise WorkerLostError(member.ended.death if member.ended is not None else "")
            await asyncio.wait_for(_call(handle, "end"), GONE_SECONDS)
        except Exception:  # noqa: BLE001 - whatever becomes of a worker that is gone
            handle.kill()
            member.handle = None

    # Messages to workers.

    async def _ask(self, member: Member, method: str, *arguments: Any, patience: float) -> Any:
        """What a method of the worker gives. Raises _LostError where the worker is gone or doesn't answer in time."""
        assert member.handle is not None
        answer = asyncio.ensure_future(member.handle.call(method, *arguments))
        waited, pause = 0.0, FIRST_WARNING
        try:
            while waited < patience:
                step = min(pause, patience - waited)
                done, _ = await asyncio.wait([answer], timeout=step)
                if done:
                    return answer.result()
                waited += step
                pause *= 2
                if method == "place" and waited < patience:
                    _log.warning(
                        "trainer worker %d has no place yet after %g s%s; given up after %g s",
                        member.rank, waited, self.reason_of_wait(), patience,
                    )  # fmt: skip
        except WorkerLostError as error:
            raise _LostError(member.rank, str(error)) from None
        finally:
            answer.cancel()
        raise _LostError(member.rank, f"didn't answer {method!r} for {patience:g} seconds")

    async def _stop(self) -> None:
        handles = [member.handle for member in self.members if member.handle is not None]
        await asyncio.gather(*(_quietly(asyncio.wait_for(_call(it, "stop"), GONE_SECONDS)) for it in handles))
        for handle in handles:
            handle.kill()


class _LostError(Exception):
    """A worker is gone, or can't be reached."""

    def __init__(self, rank: int, reason: str) -> None:
        super().__init__(reason)
        self.rank = rank
        self.reason = reason


async def _all(works: Any) -> None:
    """Await all; the first error cancels the others and is raised by itself."""
    try:
        async with asyncio.TaskGroup() as scope:
            for work in works:
                scope.create_task(work)
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def _call(handle: Handle, method: str, *arguments: Any) -> Any:
    return await handle.call(method, *arguments)


async def _quietly(work: Awaitable[Any]) -> Any:
    """What it gives, None where it fails."""
    try:
        return await work
    except Exception:  # noqa: BLE001 - of a worker that is gone or going
        return None


def _print(out: bytes, err: bytes) -> None:
    for stream, data in ((sys.stdout, out), (sys.stderr, err)):
        if data:
            stream.flush()
            # Bytes as they came: a character may stand in two pieces.
            stream.buffer.write(data) if hasattr(stream, "buffer") else stream.write(data.decode(errors="replace"))
            stream.flush()
