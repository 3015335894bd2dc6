"""The limits of a cluster, in one place: who holds permits, who waits, and whose lease ran out.

Clients are processes. A client says `hello` with everything it holds and waits for, then sends what changes by `update`
and hears of its turns by `poll`, which lasts until there is something to say: nobody asks again and again. Tickets
are named by clients, so that saying something twice does no harm, and wait first come, first served over all clients.

Whoever isn't heard of for the greater part of a limit's lease loses his tickets, so that a permit of a dead process is
back within the lease. Nothing here knows ray: `toolrl.cluster.limiter` puts it into an actor.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from toolrl.tools.rate_limits import LimitSpec, LocalLimiter, Permit

SILENCE = 0.8
"""Share of a lease after which a silent client is taken for dead."""
LOOK = 0.1
"""Share of a lease that passes between two looks. Together less than one lease."""

Roll = Mapping[str, Sequence[str]]
"""Whom the server serves: clients by the name of the limit."""
Ticket = str
Change = tuple[str, Ticket, str]
"""(`want` or `drop`, ticket, name of the limit)."""

_log = logging.getLogger(__name__)


class KeepsRoll(Protocol):
    """A place that outlives the server."""

    async def read(self) -> Roll:
        """What was written last; empty before that."""
        ...

    async def write(self, roll: Roll) -> None:
        """Keep it. Raises whatever keeps it from that."""
        ...


@dataclass(frozen=True, slots=True)
class Welcome:
    """The answer to a hello."""

    refused: Mapping[str, LimitSpec] = field(default_factory=dict)
    """Limits that are in use with another spec, which is given."""
    granted: tuple[Ticket, ...] = ()
    """Tickets that hold a permit."""
    lost: tuple[Ticket, ...] = ()
    """Tickets that the client holds, whose permits are others' by now."""
    life: str = ""
    """The server's: one that was started in the place of another has its own."""


@dataclass(slots=True)
class _Limit:
    spec: LimitSpec
    limiter: LocalLimiter
    opens: asyncio.Event
    """Set once permits may be given."""
    users: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Claim:
    """One ticket."""

    name: str
    waiting: asyncio.Task[None] | None = None
    permit: Permit | None = None


@dataclass(slots=True)
class _Client:
    heard: float
    claims: dict[Ticket, _Claim] = field(default_factory=dict)
    granted: list[Ticket] = field(default_factory=list)
    """Not yet told."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """What it says is taken in in the order in which it comes."""


class LimitServer:
    """All limits of a cluster. All methods run on one event loop."""

    def __init__(self, *, recovering: bool = False, keeper: KeepsRoll | None = None) -> None:
        """`recovering`: one before this was lost, and with it who holds what. Nothing is granted until every client
        that the one before served has said what it holds, or for one lease: some may be dead, or nothing be known of
        them; so a limit isn't exceeded by a restart. `keeper` keeps whom a server serves."""
        self._life = uuid.uuid4().hex
        self._recovering = recovering
        self._keeper = keeper
        self._awaited: dict[str, set[str]] | None = None
        """By limit: who was served before and hasn't come back. None before it was read."""
        self._written: Roll = {}
        self._writing = asyncio.Lock()
        self._limits: dict[str, _Limit] = {}
        self._clients: dict[str, _Client] = {}
        self._watch: asyncio.Task[None] | None = None
        self._began: float | None = None

    @property
    def clients(self) -> int:
        """How many processes use it."""
        return len(self._clients)

    async def hello(
        self, client: str, specs: Mapping[str, LimitSpec], held: Mapping[Ticket, str], waiting: Mapping[Ticket, str]
    ) -> Welcome:
        """A client begins, or begins anew, with all that it has. Raises what the keeper raises."""
        if self._began is None:
            self._began = self._now()
        me = self._clients.setdefault(client, _Client(self._now()))
        me.heard = self._now()
        async with me.turn:
            return await self._welcome(client, me, specs, held, waiting)

    async def _welcome(
        self,
        client: str,
        me: _Client,
        specs: Mapping[str, LimitSpec],
        held: Mapping[Ticket, str],
        waiting: Mapping[Ticket, str],
    ) -> Welcome:
        await self._read_roll()
        refused = {name: known for name, spec in specs.items() if (known := self._declare(client, name, spec))}
        await self._write_roll()  # Before it is granted anything: else a server after this might not wait for it.
        if self._clients.get(client) is not me:
            return Welcome(life=self._life)  # It said goodbye meanwhile.
        for ticket in [it for it in me.claims if it not in held and it not in waiting]:
            self._drop(me, ticket)
        lost = [it for it, name in held.items() if not (self._uses(client, name) and self._keep(me, it, name))]
        for ticket, name in waiting.items():
            if self._uses(client, name):
                self._want(me, ticket, name)
        if self._watch is None:
            self._watch = asyncio.create_task(self._look())
        await asyncio.sleep(0)
        self._came_back(client)  # Who came before waits before those of this hello.
        await asyncio.sleep(0)
        self._take_granted(me)
        granted = tuple(ticket for ticket in waiting if ticket in me.claims and me.claims[ticket].permit is not None)
        return Welcome(refused, granted, tuple(lost), self._life)

    async def update(self, client: str, changes: Sequence[Change]) -> list[Ticket] | None:
        """What a client wants and drops; the tickets that got a permit meanwhile. None: say hello first."""
        me = self._clients.get(client)
        if me is None:
            return None
        me.heard = self._now()
        async with me.turn:
            known = self._clients.get(client) is me
            if not known or not all(self._uses(client, name) for kind, _, name in changes if kind == "want"):
                return None  # A limit that isn't its own: the answer to its hello says why.
            for kind, ticket, name in changes:
                if kind == "want":
                    self._want(me, ticket, name)
                else:
                    self._drop(me, ticket)
        await asyncio.sleep(0)  # Those whose turn it is already hold their permit after this.
        return self._take_granted(me)

    async def poll(self, client: str, seconds: float) -> list[Ticket] | None:
        """Wait for tickets that got a permit, no longer than so many seconds. None: say hello first."""
        me = self._clients.get(client)
        if me is None:
            return None
        me.heard = self._now()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # Another poll of the client's may have taken the news.
                while not me.granted and self._clients.get(client) is me:
                    await me.news.wait()
        return self._take_granted(me)

    async def goodbye(self, client: str) -> None:
        """A client ends, and gives back all that it has."""
        self._forget(client)
        self._came_back(client)  # It holds nothing any more.
        await self._strike_off()

    async def state(self) -> dict[str, dict[str, int]]:
        """By limit: users, tickets that hold a permit, tickets that wait."""
        shown = {}
        for name, limit in self._limits.items():
            claims = [it for me in self._clients.values() for it in me.claims.values() if it.name == name]
            held = sum(it.permit is not None for it in claims)
            shown[name] = {"users": len(limit.users), "held": held, "waiting": len(claims) - held}
        return shown

    # Limits and tickets.

    def _declare(self, client: str, name: str, spec: LimitSpec) -> LimitSpec | None:
        """Use a limit; what it is where another client uses it otherwise."""
        limit = self._limits.get(name)
        if limit is not None and limit.spec != spec:
            if limit.users - {client}:
                return limit.spec
            limit = None
        if limit is None:
            limit = self._limits[name] = _Limit(spec, LocalLimiter(spec), asyncio.Event())
            closed = (self._began or 0.0) + spec.lease - self._now() if self._recovering else 0.0
            if closed > 0:
                asyncio.get_running_loop().call_later(closed, self._open, name, limit)
            else:
                self._open(name, limit)
        limit.users.add(client)
        return None

    def _open(self, name: str, limit: _Limit) -> None:
        """Who hasn't come back by now is dead."""
        if self._awaited is not None:
            self._awaited.pop(name, None)
        limit.opens.set()

    def _uses(self, client: str, name: str) -> bool:
        limit = self._limits.get(name)
        return limit is not None and client in limit.users

    def _want(self, me: _Client, ticket: Ticket, name: str) -> None:
        if ticket not in me.claims:
            claim = me.claims[ticket] = _Claim(name)
            claim.waiting = asyncio.create_task(self._wait(me, ticket, claim, self._limits[name]))

    async def _wait(self, me: _Client, ticket: Ticket, claim: _Claim, limit: _Limit) -> None:
        await limit.opens.wait()
        claim.permit = await limit.limiter.acquire()
        claim.waiting = None
        me.granted.append(ticket)
        me.news.set()

    def _keep(self, me: _Client, ticket: Ticket, name: str) -> bool:
        """Let a client keep a permit that it says it holds; False where there is none left for it."""
        claim = me.claims.get(ticket)
        if claim is not None and claim.permit is not None:
            return True
        permit = self._limits[name].limiter.claim()
        if permit is None:
            return False
        me.claims[ticket] = _Claim(name, permit=permit)
        return True

    def _drop(self, me: _Client, ticket: Ticket) -> None:
        claim = me.claims.pop(ticket, None)
        if claim is None:
            return
        if claim.permit is not None:
            claim.permit.release()
        if claim.waiting is not None:
            claim.waiting.cancel()

    def _take_granted(self, me: _Client) -> list[Ticket]:
        granted, me.granted = me.granted, []
        me.news.clear()
        return [ticket for ticket in granted if ticket in me.claims]

    # Leases.

    async def _look(self) -> None:
        """Take from the dead, again and again."""
        while True:
            leases = [limit.spec.lease for limit in self._limits.values()]
            await asyncio.sleep(LOOK * min(leases, default=10.0))
            served = bool(self._clients)
            self._take_from_the_dead()
            await self._strike_off()
            if served and not self._clients:
                self.nobody_left()

    def nobody_left(self) -> None:
        """The last client was taken for dead. For subclasses: a server by itself waits for others."""

    def _take_from_the_dead(self) -> None:
        now = self._now()
        for client, me in list(self._clients.items()):
            silent = now - me.heard
            used = [limit.spec.lease for limit in self._limits.values() if client in limit.users]
            if silent > SILENCE * max(used, default=10.0):
                self._forget(client)
                continue
            for ticket, claim in list(me.claims.items()):
                if silent > SILENCE * self._limits[claim.name].spec.lease:
                    self._drop(me, ticket)

    def _forget(self, client: str) -> None:
        me = self._clients.pop(client, None)
        if me is not None:
            for ticket in list(me.claims):
                self._drop(me, ticket)
            me.news.set()  # Its polls end: an actor can't end before all its calls have.
        for name, limit in list(self._limits.items()):
            limit.users.discard(client)
            if not limit.users:
                del self._limits[name]

    # The roll.

    async def _read_roll(self) -> None:
        """Whom a server before this served."""
        async with self._writing:
            if self._awaited is not None:
                return
            found = await self._keeper.read() if self._keeper and self._recovering else {}
            self._awaited = {name: set(users) for name, users in found.items()}

    async def _write_roll(self) -> None:
        async with self._writing:
            # Those that are awaited are still served: this server may die, too.
            names = self._limits.keys() | {name for name, users in (self._awaited or {}).items() if users}
            roll = {name: tuple(sorted(self._users(name) | self._missing(name))) for name in sorted(names)}
            if self._keeper is not None and roll != self._written:
                await self._keeper.write(roll)
                self._written = roll

    async def _strike_off(self) -> None:
        """Take those who left off the roll. One who stays on it costs a later server no more than a wait."""
        try:
            await self._write_roll()
        except Exception as error:  # noqa: BLE001 - whatever a store raises
            _log.warning("who uses the cluster's limits can't be written down: %s", error)

    def _users(self, name: str) -> set[str]:
        limit = self._limits.get(name)
        return limit.users if limit is not None else set()

    def _missing(self, name: str) -> set[str]:
        return (self._awaited or {}).get(name, set())

    def _came_back(self, client: str) -> None:
        """It has said all that it holds. Limits that wait for nobody else open."""
        for name, missing in list((self._awaited or {}).items()):
            missing.discard(client)
            limit = self._limits.get(name)
            if limit is not None and not missing:
                self._open(name, limit)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()
