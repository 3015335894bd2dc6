"""Settings of a LoRA adapter: `model.lora`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from toolrl.config.frame import Frame

ALL_LINEAR = "all-linear"


class LoraConfig(Frame):
    """Train low-rank additions to linear layers (arXiv 2106.09685) and leave the model's own weights as they are."""

    rank: int = Field(16, ge=1, description="r: columns of A and rows of B of each addition.")
    alpha: float = Field(
        32.0, gt=0, allow_inf_nan=False, description="An addition counts alpha / rank times (alpha / √rank: `rslora`)."
    )
    rslora: bool = Field(False, description="Scale by alpha / √rank, so that a higher rank learns no slower.")
    dropout: float = Field(
        0.0, ge=0, le=1, description="0 only: dropout would train another policy than the one that samples."
    )
    target_modules: Annotated[str, Field(min_length=1)] | Annotated[list[str], Field(min_length=1)] = Field(
        ALL_LINEAR,
        description="Which linear layers: all-linear (all but the head), names such as [q_proj, v_proj], or a regular "
        "expression that a layer's whole path matches.",
    )

    @field_validator("dropout")
    @classmethod
    def _none(cls, dropout: float) -> float:
        if dropout:
            raise ValueError(
                "expected 0: with dropout the trainer's log-probabilities aren't those that episodes were sampled with"
            )
        return dropout
