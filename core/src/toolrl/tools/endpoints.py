"""What the tool boxes of a run share: circuit breakers and limits, each under one name.

Two settings under one name are an error that names both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from toolrl.config.tool_policy import BreakerOptions, PolicyOptions
from toolrl.errors import ConfigError
from toolrl.tools.breaker import CircuitBreaker
from toolrl.tools.rate_limits import Limiter, LimitSpec, LocalLimiter


class ClusterLimits(Protocol):
    """Limits that hold for all processes of a cluster."""

    async def get(self, name: str, spec: LimitSpec) -> Limiter:
        """The limiter of this name. Raises ConfigError where another process asked for other limits."""
        ...

    async def close(self) -> None:
        """Release what this process holds, and leave."""
        ...


class Endpoints:
    """Breakers and limits by name. One object a run; a tool box that is handed none has its own."""

    def __init__(self, connect: Callable[[], ClusterLimits] | None = None) -> None:
        """`connect` gives the cluster's limits; called when a tool first asks for `limit_scope: cluster`."""
        self._connect = connect
        self._cluster: ClusterLimits | None = None
        self._breakers: dict[str, CircuitBreaker] = {}
        self._limiters: dict[tuple[str, str], tuple[LimitSpec, Limiter]] = {}

    def breaker(self, endpoint: str, options: BreakerOptions) -> CircuitBreaker:
        """The breaker of an endpoint. Raises ConfigError where it is there with other options."""
        breaker = self._breakers.get(endpoint)
        if breaker is None:
            breaker = self._breakers[endpoint] = CircuitBreaker(endpoint, options)
        if breaker.options != options:
            raise ConfigError(
                f"policy.breaker: the endpoint {endpoint!r} has a breaker with {_shown(breaker.options)}, and another "
                f"tool asks for {_shown(options)}",
                hint="Give both the same `policy.breaker`.",
            )
        return breaker

    def states(self) -> dict[str, str]:
        """What each breaker would do with a call now: closed, open or half_open."""
        return {name: breaker.state for name, breaker in sorted(self._breakers.items())}

    async def limiter(self, endpoint: str, options: PolicyOptions) -> Limiter:
        """The limiter that a policy asks for. Raises ConfigError where its name is taken by other limits."""
        name, spec = options.limit_name or endpoint, limit_spec(options)
        known = self._limiters.get((options.limit_scope, name))
        if known is None:
            limiter = LocalLimiter(spec) if options.limit_scope == "local" else await self._of_cluster(name, spec)
            known = self._limiters.setdefault((options.limit_scope, name), (spec, limiter))
        if known[0] != spec:
            raise limits_differ(name, known[0], spec)
        return known[1]

    async def close(self) -> None:
        """Leave the cluster's limits."""
        cluster, self._cluster = self._cluster, None
        self._limiters.clear()
        if cluster is not None:
            await cluster.close()

    async def _of_cluster(self, name: str, spec: LimitSpec) -> Limiter:
        if self._connect is None:
            raise ConfigError(
                "policy.limit_scope: `cluster` needs limits that a cluster shares, and none were handed in",
                hint="Use `limit_scope: local`, or run it by the `toolrl` command on a Ray cluster.",
            )
        if self._cluster is None:
            self._cluster = self._connect()
        return await self._cluster.get(name, spec)


def limit_spec(options: PolicyOptions) -> LimitSpec:
    """The limits that a policy asks for."""
    rate = options.rate
    return LimitSpec(
        concurrency=options.concurrency,
        per_second=rate.per_second if rate is not None else None,
        burst=rate.burst if rate is not None else 1,
        lease=options.limit_lease,
    )


def limits_differ(name: str, known: LimitSpec, asked: LimitSpec) -> ConfigError:
    """The error for other limits under a name that is in use."""
    return ConfigError(
        f"the limit {name!r} is in use with {known}, and another tool asks for {asked}",
        hint="Give both the same `policy.concurrency`, `rate` and `limit_lease`, or one of them its own `limit_name`.",
    )


def _shown(options: BreakerOptions) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in options.model_dump().items())
