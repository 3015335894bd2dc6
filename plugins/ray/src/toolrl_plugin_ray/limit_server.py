"""The limits of a cluster in one place: a queue for each limit, the permits that clients hold, and their leases.

A client is a process. It waits in `acquire` for its turn, first come, first served over all clients, and reports by
`renew` what it holds and waits for. A client that is silent for the greater part of its shortest lease has left, so
that the permits of a dead process are back within the lease. Nothing here knows Ray.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from toolrl.tools.endpoints import limits_differ
from toolrl.tools.rate_limits import LimitSpec, LocalLimiter, Permit

SILENCE = 0.8
"""Share of a lease after which a silent client counts as dead."""
Ticket = int
"""A client's name for one permit that it wants or holds. Later ones are greater."""


@dataclass
class _Limit:
    spec: LimitSpec
    limiter: LocalLimiter
    opens: asyncio.Event
    """Set once permits may be granted."""
    users: set[str] = field(default_factory=set)


@dataclass
class _Client:
    claims: dict[Ticket, tuple[str, asyncio.Future[Permit]]] = field(default_factory=dict)
    """Names of limits, and the permits that it holds or waits for."""
    death: asyncio.TimerHandle | None = None
    """Takes everything from it, unless it is heard of before."""


class LimitServer:
    """All limits of a cluster. All methods run on one event loop."""

    def __init__(self, *, recovering: bool = False) -> None:
        """`recovering`: this replaces a server that was lost with its list of holders. A limit then grants
        nothing for one lease, in which living clients renew what they hold; so it isn't exceeded."""
        self._life = uuid.uuid4().hex
        self._recovering = recovering
        self._began: float | None = None
        self._limits: dict[str, _Limit] = {}
        self._clients: dict[str, _Client] = {}

    async def acquire(self, client: str, ticket: Ticket, name: str, spec: LimitSpec) -> bool:
        """Wait for a permit; False where the ticket was dropped meanwhile. Repeating it does no harm. Raises as
        `renew`."""
        limit, me = self._declare(client, name, spec), self._clients[client]
        if ticket not in me.claims:
            me.claims[ticket] = name, asyncio.ensure_future(_granted(limit))
        permit = me.claims[ticket][1]
        await asyncio.wait([permit])
        return not permit.cancelled()

    async def release(self, client: str, ticket: Ticket) -> None:
        """Leave the queue, or give a permit back. Repeating it does no harm."""
        if client in self._clients:
            self._drop(self._clients[client], ticket)

    async def renew(
        self,
        client: str,
        specs: Mapping[str, LimitSpec],
        held: Mapping[Ticket, str],
        waiting: Iterable[Ticket],
        end: Ticket,
    ) -> tuple[str, list[Ticket]]:
        """The client lives, uses these limits, and has these tickets of those before `end`. Gives the name of this
        server's life, and the tickets whose permits are others' by now. Raises ConfigError where others use a limit
        with another spec."""
        for name, spec in specs.items():
            self._declare(client, name, spec)
        me, known = self._clients[client], {*held, *waiting}
        for ticket in [it for it in me.claims if it < end and it not in known]:
            self._drop(me, ticket)
        return self._life, [it for it, name in held.items() if it not in me.claims and not self._keep(me, it, name)]

    async def leave(self, client: str) -> None:
        """A client ends, and releases all that it has."""
        self._leave(client)

    def _leave(self, client: str) -> None:
        me = self._clients.pop(client, None)
        if me is None:
            return
        if me.death is not None:
            me.death.cancel()
        for ticket in list(me.claims):
            self._drop(me, ticket)
        for limit in self._limits.values():
            limit.users.discard(client)
        self._limits = {name: limit for name, limit in self._limits.items() if limit.users}
        if not self._clients:
            self.last_left()

    async def state(self) -> dict[str, dict[str, int]]:
        """By limit: users, tickets that hold a permit, tickets that wait."""
        shown = {}
        for name, limit in self._limits.items():
            permits = [it for me in self._clients.values() for of, it in me.claims.values() if of == name]
            held = sum(it.done() for it in permits)
            shown[name] = {"users": len(limit.users), "held": held, "waiting": len(permits) - held}
        return shown

    def last_left(self) -> None:
        """No client is left. For subclasses."""

    def _declare(self, client: str, name: str, spec: LimitSpec) -> _Limit:
        loop = asyncio.get_running_loop()
        self._began = self._began or loop.time()
        limit = self._limits.get(name)
        if limit is not None and limit.spec != spec:
            if limit.users - {client}:
                raise limits_differ(name, limit.spec, spec)
            limit = None
        if limit is None:
            limit = self._limits[name] = _Limit(spec, LocalLimiter(spec), asyncio.Event())
            loop.call_at(self._began + spec.lease if self._recovering else loop.time(), limit.opens.set)
        limit.users.add(client)
        me = self._clients.setdefault(client, _Client())
        if me.death is not None:
            me.death.cancel()
        lease = min(it.spec.lease for it in self._limits.values() if client in it.users)
        me.death = loop.call_later(SILENCE * lease, self._leave, client)
        return limit

    def _keep(self, me: _Client, ticket: Ticket, name: str) -> bool:
        """Let a client keep a permit that it reports; False where none is left for it."""
        permit = self._limits[name].limiter.claim()
        if permit is None:
            return False
        kept: asyncio.Future[Permit] = asyncio.get_running_loop().create_future()
        kept.set_result(permit)
        me.claims[ticket] = name, kept
        return True

    def _drop(self, me: _Client, ticket: Ticket) -> None:
        _, permit = me.claims.pop(ticket, ("", None))
        if permit is not None and not permit.cancel():  # Cancelled in the queue `acquire` gives False.
            permit.result().release()


async def _granted(limit: _Limit) -> Permit:
    await limit.opens.wait()
    return await limit.limiter.acquire()
