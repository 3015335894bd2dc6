"""Options of the engine `transformers`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class TransformersEngineOptions(BaseModel):
    """How the engine batches and how much it keeps. The defaults suit a CPU and a GPU."""

    model_config = ConfigDict(extra="forbid")

    max_batch: int = Field(128, ge=1, description="Episodes that decode at once; the others wait for a place.")
    prefill_tokens: int = Field(
        4096,
        ge=16,
        description="Prompt tokens computed between two decoding steps, padding included. Longer prompts are split.",
    )
    cache_tokens: int | None = Field(
        None,
        ge=64,
        description="Tokens whose keys and values may be held. None takes a quarter of the free memory on a CPU and of "
        "all memory on a GPU. Waiting episodes give up theirs first, the longest unused before the others.",
    )
    own_weights: bool | None = Field(
        None,
        description="Sample from a copy of the weights. None: only where the run trains while it samples "
        "(rollout.max_staleness above 0), which needs one.",
    )
    share_prefixes: bool = Field(
        True, description="Compute a prompt's beginning once for all episodes that have it in common."
    )

    def device_bytes(
        self,
        *,
        device: int,
        weights: int,
        trained: int,
        token: int,
        longest: int,
        episodes: int,
        beside: bool,
        overlap: bool,
    ) -> tuple[int, int, int]:
        """Of a GPU of `device` bytes, for `toolrl plan`: the cache grows with the episodes, up to its limit."""
        copies = overlap if self.own_weights is None else self.own_weights
        own = (trained if copies else 0) if beside else weights
        limit = device // 4 if self.cache_tokens is None else self.cache_tokens * token
        most = own + min(limit, min(self.max_batch, episodes) * longest * token)
        return 0, most, most
