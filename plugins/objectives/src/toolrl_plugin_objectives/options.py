"""Options of the objectives that have any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, Field

from toolrl.config.model import Config


class GiGPOOptions(BaseModel, extra="forbid"):
    """Options of `gigpo`."""

    step_weight: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="ω: weight of a turn's advantage beside the episode's."
    )
    discount: float = Field(0.95, gt=0, le=1, description="γ: how much a turn earns of what the next one does.")
    anchor: Literal["observation", "conversation"] = Field(
        "observation",
        description="Turns are compared that began with the same tokens given since the turn before (the prompt, or "
        "what tools answered), or with the same conversation so far.",
    )
    scale: Literal["std", "none"] = Field(
        "std", description="What differences are divided by: the standard deviation of those compared, or 1."
    )


class DPPOOptions(BaseModel, extra="forbid"):
    """Options of `dppo`."""

    divergence: Literal["tv", "kl"] = Field(
        "tv", description="Of a token's probability against all others: total variation, or KL divergence in nats."
    )
    clip_low: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Greatest divergence of a token of negative advantage that became less likely; by default 0.15 of "
        "`tv`, 0.05 of `kl`.",
    )
    clip_high: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="The same of a token of positive advantage that became likelier.",
    )
    ratio_cap: float = Field(20.0, gt=1, allow_inf_nan=False, description="Greatest weight of a token.")

    def misfits(self, config: Config) -> Iterator[str]:
        """What in the config it can't work with."""
        if getattr(config.algorithm, "importance", None) is not None:
            yield (
                "algorithm.importance: dppo weighs samples by their probabilities as sampled already; with "
                "`importance` they would be weighed twice; take it out"
            )
