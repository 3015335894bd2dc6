"""Limits for all processes of a Ray cluster: one named actor with a `LimitServer`, and each process's client of it.

    limits = RayLimits()
    limiter = await limits.get("sandbox", LimitSpec(concurrency=64))
    permit = await limiter.acquire()
    permit.release()
    await limits.close()

The actor is called `toolrl-limits` in the namespace `toolrl`. It outlives the driver that made it, and ends with its
last client. Where it dies, Ray starts it again and every client renews what it holds.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from toolrl.errors import ConfigError, ToolUnavailableError
from toolrl.tools.endpoints import limits_differ
from toolrl.tools.rate_limits import LimitSpec, Permit
from toolrl_plugin_ray.connection import NAMESPACE, join_running_cluster
from toolrl_plugin_ray.limit_server import LimitServer, Ticket

ACTOR = "toolrl-limits"
RENEW = 0.25
"""Share of the shortest lease after which a client renews."""
FIRST_SECONDS, LONGEST_PAUSE = 10.0, 2.0
LEAVE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class LimitActor(LimitServer):
    """The server as an actor, which ends with its last client."""

    def __init__(self, recovering: bool) -> None:
        super().__init__(recovering=recovering or ray.get_runtime_context().was_current_actor_reconstructed)

    def last_left(self) -> None:
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def connect_actor(*, recovering: bool = False) -> Any:
    """The cluster's actor, made where there is none. `recovering`: this process knew an earlier one."""
    if not ray.is_initialized():
        # Asking for an actor would start a cluster of one's own.
        raise ConnectionError("this process has left the Ray cluster")
    kind = ray.remote(LimitActor).options(
        name=ACTOR,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_concurrency=100_000,  # Each ticket that waits counts.
        max_restarts=-1,
    )
    return kind.remote(recovering=recovering)


class RayLimits:
    """This process's access to the limits. Belongs to the event loop in which it is first used."""

    def __init__(
        self,
        restarted: Callable[[str], None] = lambda life: None,
        *,
        connect: Callable[..., Any] = connect_actor,
        join: Callable[[], bool] = join_running_cluster,
    ) -> None:
        """`restarted` is called with its name when another server has taken the place of a known one. `join` returns
        whether it made this process part of the cluster, which `close` then leaves."""
        self._restarted = restarted
        self._connect = connect
        self._join = join
        self._joined = False
        self._client = uuid.uuid4().hex
        self._actor: Any = None
        self._life = ""
        """The server's that answered last."""
        self._specs: dict[str, LimitSpec] = {}
        self._numbers = itertools.count()
        self._waiting: set[Ticket] = set()
        self._held: dict[Ticket, str] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._closed = False

    async def get(self, name: str, spec: LimitSpec) -> RayLimiter:
        """The limiter of this name. Raises ConfigError where it is in use with other limits, or there is no cluster."""
        known = self._specs.get(name, spec)
        if known != spec:
            raise limits_differ(name, known, spec)
        if self._actor is None:
            self._joined = self._join() or self._joined
        try:
            await self._report({**self._specs, name: spec}, seconds=FIRST_SECONDS)
        except (RayError, ConnectionError) as error:
            raise ConfigError(
                f"policy.limit_scope: the limits of the Ray cluster can't be reached: {error}",
                hint="`ray status` shows its state. Every node needs toolrl and its plugins.",
            ) from error
        self._specs[name] = spec
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        return RayLimiter(self, name)

    async def close(self) -> None:
        """Give everything back, and leave. What still waits raises ToolUnavailableError."""
        self._closed = True
        if self._renewing is not None:
            self._renewing.cancel()
        if self._actor is not None and ray.is_initialized():
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(LEAVE_SECONDS):
                    await self._actor.leave.remote(self._client)
        self._actor = None
        if self._joined:
            ray.shutdown()

    async def acquire(self, name: str) -> Ticket:
        """Wait for a permit. Raises ToolUnavailableError where the limits are closed."""
        ticket = next(self._numbers)
        self._waiting.add(ticket)
        try:
            while not await self._call("acquire", ticket, name, self._specs[name]):
                pass  # Dropped, as this process was silent for too long.
        except BaseException:
            self.release(ticket)
            raise
        finally:
            self._waiting.discard(ticket)
        self._held[ticket] = name
        return ticket

    def release(self, ticket: Ticket) -> None:
        """Give a permit back, or leave the queue. A message that is lost is made good by the next renewal."""
        self._held.pop(ticket, None)
        if self._actor is not None and not self._closed:
            with suppress(RayError):
                self._actor.release.remote(self._client, ticket)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW * min(spec.lease for spec in self._specs.values()))
            await self._report(dict(self._specs))

    async def _report(self, specs: dict[str, LimitSpec], seconds: float = math.inf) -> None:
        held, end = dict(self._held), next(self._numbers)
        life, lost = await self._call("renew", specs, held, set(self._waiting), end, seconds=seconds)
        for ticket in lost:
            if self._held.pop(ticket, None) is not None:
                _log.warning("a permit's lease ran out during its call: this process was silent for too long")
        if self._life not in ("", life):
            _log.warning("the cluster's limits were lost and work again; %d calls waited", len(self._waiting))
            self._restarted(life)
        self._life = life

    async def _call(self, method: str, *arguments: Any, seconds: float = math.inf) -> Any:
        """What a method of the server gives, repeated where the actor is lost, for so many seconds."""
        pause, end = 0.05, asyncio.get_running_loop().time() + seconds
        while True:
            if self._closed:
                raise ToolUnavailableError("The cluster's limits are closed.")
            try:
                if self._actor is None:
                    self._actor = self._connect(recovering=bool(self._life))
                return await getattr(self._actor, method).remote(self._client, *arguments)
            except RayTaskError as error:
                raise error.cause from None
            except (RayError, ConnectionError):
                self._actor = None
                if asyncio.get_running_loop().time() >= end:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


@dataclass(frozen=True)
class RayLimiter:
    """One name's limits."""

    limits: RayLimits
    name: str

    async def acquire(self) -> Permit:
        """Wait for one's turn among all processes. The permit is renewed as long as this process lives. Raises
        ToolUnavailableError where the limits are closed."""
        return Permit(partial(self.limits.release, await self.limits.acquire(self.name)))
