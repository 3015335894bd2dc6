"""`policy:` of a tool in the config."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DEFAULT_TIMEOUT = 30.0
SHORTEST_CLUSTER_LEASE = 1.0


class RetryOptions(BaseModel):
    """Retry a call whose error the tool marks as transient."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempts: int = Field(3, ge=2, description="Times that a call is made at most, the first one included.")
    first_delay: float = Field(
        0.5, gt=0, description="Seconds to wait after the first failure; twice as many after each further one."
    )
    max_delay: float = Field(30.0, gt=0, description="The wait doesn't grow above so many seconds.")
    jitter: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Share of a wait that is left to chance, so that calls which failed together come apart.",
    )
    max_seconds: float = Field(
        120.0,
        gt=0,
        description="No attempt begins later than so many seconds after the first, whatever the server wishes.",
    )
    on_timeout: bool = Field(
        False, description="Also retry calls that ran into `timeout`; only of tools that are `pure` or `idempotent`."
    )


class BreakerOptions(BaseModel):
    """Don't call an endpoint that fails again and again: answer `unavailable` for a while, then let one call try."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    failures: int = Field(
        5, ge=1, description="So many calls in a row that fail (crash, time out, or are marked transient) open it."
    )
    window: float = Field(60.0, gt=0, description="Failures longer ago than so many seconds don't count.")
    reset: float = Field(30.0, gt=0, description="Seconds that it stays open before one call may try.")


class RateOptions(BaseModel):
    """The rate at which calls may begin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    per_second: float = Field(gt=0, allow_inf_nan=False, description="Calls a second in the long run; may be below 1.")
    burst: int = Field(1, ge=1, description="Calls that may begin at once after a quiet time.")


class PolicyOptions(BaseModel):
    """`policy:` of a tool in the config."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float | None = Field(
        None,
        gt=0,
        description=f"Seconds a call may take; None for the tool's own limit, else {DEFAULT_TIMEOUT:g}. Each attempt "
        "has so many; waiting for its turn doesn't count.",
    )
    session_timeout: float = Field(
        120.0,
        gt=0,
        description="Seconds that opening an episode's session, its say in the conversation, its reward, and closing "
        "it may take, each.",
    )
    max_output_tokens: int | None = Field(
        1024, ge=1, description="Longer results are cut to so many tokens; None for no limit."
    )
    truncate: Literal["head", "tail", "middle"] = Field(
        "middle",
        description="What is kept of a result that is too long: `head` its beginning, `tail` its end, `middle` both, "
        "with the middle left out.",
    )
    # `validate` is a method of BaseModel, hence the other name.
    check_arguments: bool = Field(
        True, alias="validate", description="Check arguments against the tool's JSON Schema before the call."
    )
    max_calls_per_turn: int | None = Field(
        None, ge=1, description="Calls of one turn that run; further ones are answered `too_many_calls`."
    )
    max_calls_per_episode: int | None = Field(
        None, ge=1, description="Calls of one episode that run; further ones are answered `too_many_calls`."
    )
    cache: int | None = Field(
        None,
        ge=1,
        description="So many answers are kept for equal calls of all episodes; only for tools that are `pure`.",
    )
    retry: RetryOptions | None = Field(
        None, description="Retry calls whose error the tool marks as transient; `{}` for the defaults, None for never."
    )
    breaker: BreakerOptions | None = Field(
        None, description="Stop calling an endpoint that fails again and again; `{}` for the defaults, None for never."
    )
    concurrency: int | None = Field(
        None, ge=1, description="Calls of the endpoint that run at once; None for no limit."
    )
    rate: RateOptions | None = Field(None, description="How often calls of the endpoint may begin; None for no limit.")
    queue_timeout: float = Field(
        300.0,
        gt=0,
        description="Seconds a call may wait for its turn, or for a free process, before it is answered `limit`.",
    )
    limit_scope: Literal["local", "cluster"] = Field(
        "local",
        description="Whether `concurrency` and `rate` hold for this process or for all processes of a Ray cluster.",
    )
    limit_name: str | None = Field(
        None, min_length=1, description="Tools with one name share their limits; None for the endpoint's."
    )
    limit_lease: float = Field(
        30.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which the permit of a holder that died, or of a call that can't be stopped, comes "
        "back.",
    )

    @property
    def limited(self) -> bool:
        """Whether calls take a permit or a token."""
        return self.concurrency is not None or self.rate is not None

    @model_validator(mode="after")
    def _long_leases(self) -> Self:
        if self.limit_scope == "cluster" and self.limit_lease < SHORTEST_CLUSTER_LEASE:
            raise ValueError(
                f"limit_lease is {self.limit_lease:g} s, and on a cluster every process has to be heard of several "
                f"times in it: give it at least {SHORTEST_CLUSTER_LEASE:g} s"
            )
        return self
