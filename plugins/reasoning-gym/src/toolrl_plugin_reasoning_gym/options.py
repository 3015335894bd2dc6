"""Options of the reasoning-gym plugin."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from toolrl.types import Task
from toolrl_plugin_reasoning_gym.carried import carried_by

MAX_SIZE = 2**20
"""The library seeds a task by seed + index, so seeds are laid this far apart."""
MAX_SEED = 2**12 - 1
"""Some generators take no seed of more than 32 bits."""
INSTRUCTION = "Give the final answer between <answer> and </answer>."


class GeneratorOptions(BaseModel, extra="forbid"):
    """One generator of a mixture."""

    name: str = Field(min_length=1, description="The generator's name, as `toolrl reasoning-gym list` shows it.")
    weight: float = Field(1.0, gt=0, allow_inf_nan=False, description="Its share, against those of the others.")
    config: dict[str, Any] = Field(
        default_factory=dict,
        description="The generator's own settings. A `seed` is taken as it is, so that task i is the library's.",
    )
    environment: str | None = Field(None, description="The environment of its tasks, over that of the data set.")

    @field_validator("config")
    @classmethod
    def _has_no_size(cls, config: dict[str, Any]) -> dict[str, Any]:
        if "size" in config:
            raise ValueError("`size` is an option of the data set, not of a generator")
        return config


class DataOptions(BaseModel, extra="forbid"):
    """Options of the data set `reasoning_gym`."""

    generators: list[GeneratorOptions] = Field(
        min_length=1,
        description="What the tasks are drawn from: names, or objects with `name`, `weight`, `config`, `environment`.",
    )
    size: int = Field(10_000, ge=1, le=MAX_SIZE, description="How many tasks.")
    seed: int = Field(
        0,
        ge=0,
        le=MAX_SEED,
        description="Decides the tasks with the index; no two seeds share a task's random numbers.",
    )
    instruction: str = Field(INSTRUCTION, description="Put after each question; empty for none.")
    system_prompt: str | None = Field(None, description="A system message for each task, over the environment's.")
    environment: str | None = Field(None, description="The environment that the tasks run in.")

    @field_validator("generators", mode="before")
    @classmethod
    def _names_stand_for_generators(cls, given: Any) -> Any:
        if isinstance(given, list):
            return [{"name": item} if isinstance(item, str) else item for item in given]
        return given

    def check_files(self) -> None:
        """Raises ConfigError where the library isn't installed, or has no such generator or setting."""
        from toolrl_plugin_reasoning_gym.process import check_generators

        check_generators(self)


class ReasoningGymRewardOptions(BaseModel, extra="forbid"):
    """Options of the reward `reasoning_gym`."""

    judge: Literal["final", "answer", "all"] = Field(
        "final",
        description="Where the answer is looked for: the text of the final turn without reasoning and calls, what an "
        "end flag of the environment matched, or the text of all turns. Never what a tool answered.",
    )
    form: Literal["tag", "boxed", "text"] = Field(
        "tag",
        description="What in it is the answer: the last <answer>…</answer>, the last \\boxed{…}, or all of the text. "
        "What an end flag matched is taken whole.",
    )
    partial: bool = Field(True, description="Give the scorer's own value, from 0 to 1; false gives 1 or 0.")
    timeout: int = Field(
        5, ge=1, le=600, description="Seconds of processor time that one answer may take; then it is worth 0."
    )
    memory_mb: int = Field(
        1024, ge=64, description="Megabytes that judging one answer may take, over the library's own."
    )
    workers: int = Field(2, ge=1, le=64, description="Answers that are judged at once, each with a process.")

    def check_task(self, task: Task) -> None:
        """Raises RewardError for a task of another data set."""
        carried_by(task)
