"""Limits for all processes of a Ray cluster: one named actor, and this process's line to it.

    limits = RayLimits()
    limiter = await limits.get("sandbox", LimitSpec(concurrency=64))
    permit = await limiter.acquire()
    permit.release()
    await limits.close()

The actor is called `toolrl-limits` in the namespace `toolrl`, whatever namespace a driver uses, and outlives the driver
that made it; with the goodbye or the death of its last client it ends. Wants and releases of a process are sent in
batches: what gathers while one message is on its way goes with the next. Turns come back on a call that lasts until
there is one.

Where the actor or its node dies, ray starts it anew, and every client says what it holds. Until all that it served have
done so, and for one lease at most, it grants nothing: a limit isn't exceeded, but waits; those who wait are served in
the order in which they come back. Whom it served stands in the key-value store of Ray's head.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import signal
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.experimental import internal_kv

from toolrl.cluster.limit_server import Change, LimitServer, Roll, Ticket, Welcome
from toolrl.errors import ConfigError, ToolUnavailableError
from toolrl.tools.endpoints import limits_differ
from toolrl.tools.rate_limits import LimitSpec

ACTOR = "toolrl-limits"
NAMESPACE = "toolrl"
HEARTBEAT = 0.25
"""Share of the shortest lease after which the actor hears of this process at the latest."""
SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
GOODBYE_SECONDS = 5.0
SENDERS, LISTENERS = 3, 2
"""Messages that may be on their way at once. With more, less gathers in each."""

_log = logging.getLogger(__name__)


class _Roll:
    """The server's roll in the key-value store of Ray's head, which outlives actors."""

    async def read(self) -> Roll:
        """See KeepsRoll."""
        data = await asyncio.to_thread(internal_kv._internal_kv_get, ACTOR, namespace=NAMESPACE)
        return {name: tuple(users) for name, users in json.loads(data).items()} if data else {}

    async def write(self, roll: Roll) -> None:
        """See KeepsRoll."""
        await asyncio.to_thread(internal_kv._internal_kv_put, ACTOR, json.dumps(roll), True, namespace=NAMESPACE)


class _Actor(LimitServer):
    """The server as an actor, which ends with its last client."""

    def __init__(self, recovering: bool) -> None:
        recovering = recovering or ray.get_runtime_context().was_current_actor_reconstructed
        super().__init__(recovering=recovering, keeper=_Roll())

    async def goodbye(self, client: str) -> None:
        await super().goodbye(client)
        if not self.clients:
            ray.actor.exit_actor()

    def nobody_left(self) -> None:
        # No call goes on whose end could be this one's.
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def connect_actor(*, recovering: bool = False) -> Any:
    """The cluster's actor, made where there is none. `recovering` says that this process knew an earlier one."""
    if not ray.is_initialized():
        # Asking for an actor would start a cluster of one's own.
        raise ConnectionError("this process has left the Ray cluster")
    kind = ray.remote(_Actor).options(
        name=ACTOR,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_concurrency=10_000,  # each client's poll counts
        max_restarts=-1,
    )
    return kind.remote(recovering=recovering)


def join_cluster() -> bool:
    """Make this process part of the Ray cluster that runs here; False where it is already. Raises ConfigError where
    none does."""
    if ray.is_initialized():
        return False
    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM) if main else None  # None, too, for one that isn't Python's.
    try:
        ray.init(address="auto", namespace=NAMESPACE, log_to_driver=False)
    except (
        ConnectionError,
        ValueError,
        RuntimeError,
    ) as error:  # The last two: an address that is none, other versions.
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"policy.limit_scope: `cluster` needs a Ray cluster, and none can be joined: {reason}",
            hint="Start one by `ray start --head`, or name one's address in RAY_ADDRESS; for one process alone "
            "`limit_scope: local` does.",
        ) from error
    finally:
        if handler is not None:
            # ray.init puts its own there, which ends the process without saving anything.
            signal.signal(signal.SIGTERM, handler)
    return True


class RayLimits:
    """This process's line to the actor. Belongs to the event loop in which it is first used."""

    def __init__(
        self,
        connect: Callable[..., Any] = connect_actor,
        *,
        join: Callable[[], bool] = join_cluster,
        restarted: Callable[[str], None] = lambda life: None,
    ) -> None:
        """`connect(recovering=…)` gives an actor's handle, `join()` says whether it made this process part of a
        cluster, which is then left in the end. `restarted(life)` is called when another server is in the place of one
        that this process knew, with its name."""
        self._connect = connect
        self._join = join
        self._restarted = restarted
        self._life = ""
        """Of the server that welcomed this process last."""
        self._joined = False
        self._client = uuid.uuid4().hex
        self._server: Any = None
        self._welcome = False
        """Whether a server ever knew this process."""
        self._hellos = 0
        """Counts them when they are sent. What was sent before the last one is in it, and needs no other."""
        self._hello = asyncio.Lock()
        self._specs: dict[str, LimitSpec] = {}
        self._said: dict[str, LimitSpec] = {}
        """Those of the last hello."""
        self._accepted: set[str] = set()
        """Names that were this process's at least once."""
        self._refused: dict[str, LimitSpec] = {}
        """Names that are others' by now, with the limits that hold there."""
        self._numbers = itertools.count()
        self._waiting: dict[Ticket, tuple[str, asyncio.Future[None]]] = {}
        self._held: dict[Ticket, str] = {}
        self._changes: list[Change] = []
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._closed = False

    async def get(self, name: str, spec: LimitSpec) -> RayLimiter:
        """The limiter of this name. Raises ConfigError where it is in use with other limits, or there is no cluster."""
        if self._server is None:
            self._joined = self._join() or self._joined
        while True:
            known = self._specs.setdefault(name, spec)
            if known != spec:
                raise limits_differ(name, known, spec)
            await self._say_hello()
            if name in self._refused:
                if name not in self._accepted:
                    self._specs.pop(name, None)
                raise limits_differ(name, self._refused[name], spec)
            if name in self._said:  # Else somebody who was refused at the same time took it out before the hello.
                break
        self._accepted.add(name)
        if not self._tasks:
            # Messages arrive in the order in which they were sent, so that one needn't wait for the other's answer.
            lines = [self._send] * SENDERS + [self._listen] * LISTENERS
            self._tasks = [asyncio.create_task(line()) for line in lines]
        return RayLimiter(self, name)

    async def close(self) -> None:
        """Give everything back, and leave."""
        self._closed = True
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name, turn in self._waiting.values():
            if not turn.done():
                turn.set_exception(ToolUnavailableError(f"The limit {name!r} was closed while the call waited."))
        self._waiting.clear()
        self._held.clear()
        if self._server is not None and ray.is_initialized():
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(GOODBYE_SECONDS):
                    await self._server.goodbye.remote(self._client)
        self._server = None
        if self._joined:
            ray.shutdown()

    # For the limiters and permits.

    async def ensure(self, name: str) -> None:
        """Ask again for a name that was lost to others. Raises ToolUnavailableError where it is still theirs."""
        if name in self._refused:
            await self._say_hello(after=self._hellos)
            if name in self._refused:
                raise _lost(name)

    def want(self, name: str) -> tuple[Ticket, asyncio.Future[None]]:
        """Queue; the future ends when it is one's turn."""
        if self._closed:
            raise ToolUnavailableError(f"The limit {name!r} is closed.")
        ticket = f"{self._client}/{next(self._numbers)}"
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = (name, turn)
        self._change("want", ticket, name)
        return ticket, turn

    def drop(self, ticket: Ticket) -> None:
        """Leave the queue, or give a permit back. Twice is once."""
        waiting, held = self._waiting.pop(ticket, None), self._held.pop(ticket, None)
        if waiting is not None or held is not None:
            self._change("drop", ticket, "")

    def _change(self, *change: str) -> None:
        self._changes.append(change)  # type: ignore[arg-type]
        self._changed.set()

    # The line.

    async def _send(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(0)  # What others change in the same step goes with it.
            self._changed.clear()
            changes, self._changes = self._changes, []
            if changes:
                await self._ask("update", changes)

    async def _listen(self) -> None:
        while True:
            await self._ask("poll", HEARTBEAT * min(spec.lease for spec in self._specs.values()))

    async def _ask(self, method: str, argument: Any) -> None:
        """One message; where the server doesn't know this process, or is no more, a hello stands for it."""
        hellos, server = self._hellos, self._server
        try:
            # Without a server somebody is looking for one, and the hello waits for that.
            granted = await getattr(server, method).remote(self._client, argument) if server is not None else None
        except Exception:  # noqa: BLE001 - most are RayErrors; whatever it is, a line that ended would hang all who wait
            granted = None
        if granted is None:
            await self._say_hello(after=hellos)
        else:
            self._deliver(granted)

    async def _say_hello(self, *, after: int | None = None) -> Welcome | None:
        """Tell a server all there is, until one hears it. None where more hellos than `after` were heard already."""
        async with self._hello:
            if after is not None and self._hellos != after:
                return None
            pause = SHORTEST_PAUSE
            while True:
                if self._closed:
                    raise ToolUnavailableError("The cluster's limits are closed.")
                try:
                    welcome = await self._hello_once()
                    break
                except Exception as error:
                    self._server = None
                    if not self._welcome and pause > LONGEST_PAUSE:
                        raise ConfigError(
                            f"policy.limit_scope: the limits of the Ray cluster can't be reached: {error}",
                            hint="`ray status` says how the cluster is. Every node needs toolrl.",
                        ) from error
                    if pause == SHORTEST_PAUSE:
                        _log.warning("the cluster's limits can't be reached (%s); trying on", type(error).__name__)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE * 2)
            self._welcome = True
            self._welcomed(welcome)
            return welcome

    async def _hello_once(self) -> Welcome:
        if self._server is None:
            self._server = self._connect(recovering=self._welcome)
        self._hellos += 1
        self._changes.clear()  # All of them are in what follows.
        waiting = {ticket: name for ticket, (name, _) in self._waiting.items()}
        self._said = dict(self._specs)
        welcome: Welcome = await self._server.hello.remote(self._client, self._said, dict(self._held), waiting)
        return welcome

    def _welcomed(self, welcome: Welcome) -> None:
        if self._life not in ("", welcome.life):
            _log.warning("the cluster's limits were lost and are there again; %d calls waited", len(self._waiting))
            self._restarted(welcome.life)
        self._life = welcome.life
        self._deliver(welcome.granted)
        for name in welcome.refused.keys() & self._accepted - self._refused.keys():
            _log.error(
                "this process was silent for so long that others took its place: %s",
                limits_differ(name, welcome.refused[name], self._specs[name]),
            )
        self._refused = dict(welcome.refused)
        for ticket in welcome.lost:
            if self._held.pop(ticket, None) is not None:
                _log.warning("a permit's lease ran out while its call went on: this process was silent for too long")
        for ticket, (name, turn) in list(self._waiting.items()):
            if name in welcome.refused and not turn.done():
                del self._waiting[ticket]
                turn.set_exception(_lost(name))

    def _deliver(self, granted: list[Ticket] | tuple[Ticket, ...]) -> None:
        for ticket in granted:
            name, turn = self._waiting.pop(ticket, (None, None))
            if name is not None and turn is not None:
                self._held[ticket] = name
                if not turn.done():
                    turn.set_result(None)
            elif ticket not in self._held:
                # Given up before; where that came before the want, the server would keep the permit for ever.
                self._change("drop", ticket, "")


class RayLimiter:
    """One name's limits."""

    def __init__(self, limits: RayLimits, name: str) -> None:
        self._limits = limits
        self._name = name

    async def acquire(self) -> RayPermit:
        """Wait for one's turn among all processes. Raises ToolUnavailableError where the limits are closed, or the name
        was lost to others, who ask for other limits."""
        await self._limits.ensure(self._name)
        ticket, turn = self._limits.want(self._name)
        try:
            await turn
        except BaseException:
            self._limits.drop(ticket)
            raise
        return RayPermit(self._limits, ticket)


class RayPermit:
    """A permit of a cluster's limit. Its lease is renewed as long as this process lives."""

    def __init__(self, limits: RayLimits, ticket: Ticket) -> None:
        self._limits = limits
        self._ticket = ticket
        self._timer: asyncio.TimerHandle | None = None

    def release(self) -> None:
        """Give it back. Twice is once."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._limits.drop(self._ticket)

    def lease(self, seconds: float) -> None:
        """From now on it comes back by itself after so many seconds, unless this is called again."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.release)


def _lost(name: str) -> ToolUnavailableError:
    return ToolUnavailableError(
        f"This tool can't be called now: its limit {name!r} is in use by others, with other settings. Go on without it."
    )
