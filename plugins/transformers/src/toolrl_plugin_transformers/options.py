"""Options of the engine `transformers`."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from toolrl.config.frame import OldNames

if TYPE_CHECKING:
    from toolrl.config.model import RolloutConfig


class TransformersEngineOptions(BaseModel):
    """How the engine batches and how much it keeps. The defaults suit a CPU and a GPU."""

    model_config = ConfigDict(extra="forbid")
    old_names: ClassVar[OldNames] = {"own_weights": None, "share_prefixes": None}
    scores_tokens: ClassVar = True

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
    return_routes: bool = Field(
        False, description="Record the experts of each token, for trainer.router_replay. For models with experts."
    )

    def sampling_problem(self, rollout: RolloutConfig) -> str | None:
        """Why it can't sample and record sampling masks like this, or None."""
        return None

    def device_bytes(
        self, *, device: int, weights: int, trained: int, token: int, longest: int, episodes: int, overlap: bool
    ) -> tuple[int, int, int]:
        """Of the trainer's GPU, for `toolrl plan`: at least, at most, and while the trainer works. The cache grows with
        the episodes, up to its limit; a copy of the weights shares those that aren't trained."""
        copied = trained if overlap else 0
        limit = device // 4 if self.cache_tokens is None else self.cache_tokens * token
        most = copied + min(limit, min(self.max_batch, episodes) * longest * token)
        return 0, most, most
