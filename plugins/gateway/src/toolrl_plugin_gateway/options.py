"""Options of the harnesses."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

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
    answer: Literal["stdout", "last_line", "file"] | None = Field(
        None,
        description="The final answer: all of stdout, its last line that isn't empty, or the file that the environment "
        "variable TOOLRL_ANSWER names, which the program writes. Libraries may print to stdout. Without it the rewards "
        "read the model's last turn.",
    )
    agent_reward: bool = Field(
        False,
        description="The program may report the episode's reward, once, by `POST $OPENAI_BASE_URL/reward`. The task on "
        "stdin then has the key for it, as `reward_key`: the key of OPENAI_API_KEY, which the commands of the model "
        "may see, sets no reward.",
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

    @model_validator(mode="after")
    def _has_a_place_for_the_key(self) -> Self:
        if self.agent_reward and self.stdin != "task":
            raise ValueError(f"agent_reward needs `stdin: task`, which has the key for it (got {self.stdin})")
        return self
