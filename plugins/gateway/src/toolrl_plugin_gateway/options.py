"""Options of the harnesses."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from toolrl.config.frame import OldNames


class HarnessOptions(BaseModel):
    """What all harnesses behind the gateway have in common."""

    model_config = ConfigDict(extra="forbid")

    time_limit: float = Field(
        600.0,
        gt=0,
        description="Seconds of an episode. One that takes longer ends with stop reason `timeout` and is scored.",
    )
    crash_reward: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Added to the reward of an episode whose agent crashed, which is then scored. Without it such an "
        "episode fails and isn't trained on.",
    )
    roles: dict[str, str] = Field(
        default_factory=dict,
        description="The role that is asked, by the model's name in a request: `{user-simulator: user}`. Other names "
        "ask `agent`.",
    )


class PythonOptions(HarnessOptions):
    """Options of the harness `python`."""

    target: str = Field(
        description="The function that plays an episode, as `module:function` or `file.py:function`. It takes an "
        "`AgentEpisode`, and returns None, the answer as text, or an Outcome. A plain function runs in a thread."
    )


class CommandOptions(HarnessOptions):
    """Options of the harness `command`."""

    old_names: ClassVar[OldNames] = {"keep_folders": None}

    command: str | list[str] = Field(
        description="What plays an episode: words, or a text that is split as a shell does; no shell runs it. "
        "`{prompt}` stands for the text of the task's last user message, `{task}` for the path of a file with the "
        "task. Paths start where the run is started."
    )
    stdin: Literal["task", "prompt", "nothing"] = Field(
        "task", description="What stands on stdin: the task as JSON, the text of its last user message, or nothing."
    )
    answer: Literal["stdout"] | None = Field(
        None, description="stdout is the final answer. Without it the rewards read the model's last turn."
    )
    folder: str | None = Field(
        None, description="A folder that is copied: each process starts in a copy of its own, else in an empty folder."
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of the process, besides the gateway's and PATH, HOME, LANG and their like. "
        "Nothing else of the run's environment reaches it.",
    )
    processes: int = Field(32, ge=1, description="Processes that run at once; further episodes wait.")
