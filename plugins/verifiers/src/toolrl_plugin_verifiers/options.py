"""Options of the data set `verifiers`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class DataOptions(BaseModel):
    """Options of the data set `verifiers`."""

    model_config = ConfigDict(extra="forbid")

    id: str = Field(min_length=1, description="The environment, as `verifiers.load_environment` takes it.")
    args: dict[str, Any] = Field(default_factory=dict, description="Further arguments of `load_environment`.")
    split: Literal["train", "eval"] = Field("train", description="The environment's data set, or its `eval_dataset`.")
    skip: int = Field(0, ge=0, description="Leave out the first so many rows.")
    limit: int | None = Field(None, ge=1, description="At most so many rows.")
    environment: str | None = Field(None, description="The environment of the config that plays these tasks.")
