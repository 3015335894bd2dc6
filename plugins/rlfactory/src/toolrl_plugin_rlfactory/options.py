"""Options of the rlfactory plugin."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, model_validator

REGISTERED = ("qwen3", "qwen2_5", "llama3", "centralized_qwen3", "adaptive")


class EnvOptions(BaseModel, extra="forbid"):
    """Which classes of the user's are at work. Components that name the same ones share one object."""

    env: str | None = Field(
        None,
        pattern=":",
        description="Your Env: `module:Class`, or a file, `envs/mine.py:MyEnv`. Null for RLFactory's own.",
    )
    tool_manager: str = Field(
        "qwen3",
        pattern=f":|^({'|'.join(REGISTERED)})$",
        description="`qwen3`, `qwen2_5`, `llama3`, `centralized_qwen3` or `adaptive` (which read alike), or your "
        "ToolManager, as `module:Class` or `file.py:Class`.",
    )
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="What the classes get as their config: RLFactory's settings below `actor_rollout_ref.env`.",
    )

    @property
    def own_manager(self) -> bool:
        """True where the manager is a class of the user's."""
        return self.tool_manager not in REGISTERED


class EnvParserOptions(EnvOptions):
    """Options of the parser `rlfactory`."""

    whole_text: bool = Field(
        False,
        description="Also read answers and calls within <think>…</think>, and answers within a call, as RLFactory "
        "does.",
    )


class EnvToolOptions(EnvOptions):
    """Options of the toolset `rlfactory`."""

    @model_validator(mode="after")
    def _some_class(self) -> EnvToolOptions:
        if self.env is None and not self.own_manager:
            raise ValueError("no tools are named: give env or tool_manager")
        return self


class EnvRewardOptions(EnvOptions):
    """Options of the reward `rlfactory`."""

    step_rewards: bool = Field(
        False, description="Also credit each turn with get_step_reward (RLFactory: env.use_process_reward)."
    )
    factor: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="format_score of get_step_reward: a turn whose calls can be read gets it. Null for the method's "
        "own default, 0.1 in SearchEnv.",
    )
    format_score: float = Field(
        0.1,
        ge=0,
        allow_inf_nan=False,
        description="Of RLFactory's own SearchEnv: what the form adds to the final score or takes off. RLFactory has "
        "0.1 in training and 0 in validation.",
    )
    solution: Literal["model", "response"] = Field(
        "model",
        description="What is scored: what the model wrote, or, as RLFactory does, everything after the prompt, what "
        "tools answered included.",
    )
