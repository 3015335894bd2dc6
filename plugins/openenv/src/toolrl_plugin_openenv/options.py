"""Options of the toolsets `openenv` and `gymnasium`."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from toolrl.config.frame import OldNames
from toolrl_plugin_openenv.container import check_docker


class ActionOptions(BaseModel):
    """From what the model says in a turn to the environment's action."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pattern: str | None = Field(
        None,
        description="A regular expression; the action is its last match, the group `action` or the first one where it "
        "has groups. Searched in the last 4096 characters of the turn. None takes the whole turn.",
    )
    choices: list[str] | dict[str, Any] | None = Field(
        None,
        description="The only actions there are, by name; case and blanks around don't matter. A list gives the name, "
        "or its place in the list where the environment wants a number; an object gives the value of its name.",
    )
    field: str | None = Field(
        None,
        description="For `openenv`: the field of the environment's action that takes it. None for the only one that "
        "is required, or the only one there is.",
    )
    constants: dict[str, Any] = Field(
        default_factory=dict, description="For `openenv`: further fields of the action, the same in each step."
    )
    invalid_reward: float | None = Field(
        None, description="The step reward of a turn that holds no valid action; the environment makes no step then."
    )

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from None
        return value


class EpisodeOptions(BaseModel):
    """What both toolsets have."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    action: ActionOptions = Field(
        default_factory=ActionOptions, description="How a turn's text becomes an action, where the episode is a talk."
    )
    observation: list[str] | None = Field(
        None,
        description="What of an observation is shown, as dotted paths, `messages.0.content`; several are joined by "
        "blank lines. None shows the only text that it holds, else its JSON.",
    )
    max_observation_tokens: int = Field(
        1024, ge=1, description="Longer observations lose their middle. Results of tools are cut by `policy`."
    )
    reward: Literal["step", "final"] = Field(
        "step",
        description="`step`: each step's reward is credited to its turn. `final`: the last one that came is the reward "
        "of the whole episode, for environments whose reward is a score so far.",
    )
    reset: dict[str, Any] = Field(
        default_factory=dict,
        description="Arguments of `reset`, over the `seed` that all episodes of a task have in common, so that a group "
        "starts from one state. A task adds its own by `tools_kwargs`, under the name of the tool "
        "in the config, as `create_kwargs`.",
    )
    reset_fields: dict[str, str] = Field(
        default_factory=dict,
        description="Arguments of `reset` that come from the task: argument to `id`, `answer`, or the path of a column "
        "that ended in the task's `extra`.",
    )
    step_timeout: float = Field(60.0, gt=0, description="Seconds the environment may take for a step.")
    reset_timeout: float = Field(
        100.0, gt=0, description="Seconds it may take for a reset; `policy.session_timeout` has to be longer."
    )
    queue_timeout: float = Field(
        1800.0, gt=0, description="Seconds an episode may wait for its place, before it fails."
    )


class ReconnectOptions(BaseModel):
    """What happens where a server can't be reached, or its connection breaks."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    old_names: ClassVar[OldNames] = {"replay": None}

    attempts: int = Field(
        8,
        ge=1,
        description="Times a connection is tried before the episode fails; 8 leave a server some 45 seconds to start "
        "again.",
    )
    first_delay: float = Field(0.5, gt=0, description="Seconds after the first failure; twice as many after each more.")
    max_delay: float = Field(15.0, gt=0, description="The wait doesn't grow above so many seconds.")


class OpenEnvOptions(EpisodeOptions):
    """Options of the toolset `openenv`."""

    url: str | None = Field(
        None,
        pattern=r"\A(https?|wss?)://[^/\s]+",
        description="Where the server is: http, https, ws or wss, without `/ws`.",
    )
    image: str | None = Field(
        None,
        pattern=r"\A[\w.][\w./:@-]*$",
        description="Instead: a Docker image of an environment, such as `echo-env:latest`. It runs as a container of "
        "this machine as long as the run, one for each process that samples.",
    )
    env_vars: dict[str, SecretStr] = Field(
        default_factory=dict, description="With `image`: environment variables of the container."
    )
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="HTTP headers of the connection, such as Authorization."
    )
    mode: Literal["auto", "tools", "action", "text"] = Field(
        "auto",
        description="`tools`: the model calls the tools that the environment lists. `action`: it calls one tool, whose "
        "arguments are the environment's action. `text`: what it says is the action, and the observation answers it. "
        "`auto`: tools where there are some, else text.",
    )
    tool_name: str = Field(
        "act", pattern=r"\A[A-Za-z_][\w.-]{0,63}$", description="With `mode: action`, what the tool is called."
    )
    max_sessions: int = Field(
        256,
        ge=1,
        description="Sessions that are open at once at most. A server that takes fewer is asked for fewer; episodes "
        "wait for a free one, first come, first served.",
    )
    start_timeout: float = Field(60.0, gt=0, description="Seconds until the server has to be there when a run starts.")
    connect_timeout: float = Field(10.0, gt=0, description="Seconds for one try to open a session.")
    close_timeout: float = Field(10.0, gt=0, description="Seconds a server may take to let go of a session.")
    max_message_bytes: int = Field(
        100 * 2**20,
        ge=2**16,
        description="Bytes that one message of the server may have; a longer one ends its session, and the episode "
        "fails. As in OpenEnv's own client.",
    )
    reconnect: ReconnectOptions = Field(
        default_factory=ReconnectOptions,
        description="What happens where the server can't be reached, or a connection breaks.",
    )

    @model_validator(mode="after")
    def _one_server(self) -> OpenEnvOptions:
        if (self.url is None) == (self.image is None):
            raise ValueError("name the environment by either `url` or `image`")
        if self.env_vars and self.image is None:
            raise ValueError("env_vars needs `image`: a server at a `url` gets no variables")
        return self

    def check_files(self) -> None:
        """Raises ToolsetError for an image where there is no docker."""
        if self.image is not None:
            check_docker(self.image)


class GymnasiumOptions(EpisodeOptions):
    """Options of the toolset `gymnasium`."""

    old_names: ClassVar[OldNames] = {"isolation": None}

    id: str | None = Field(
        None,
        min_length=1,
        description="An id of `gymnasium.make`; `module:Name-v0` imports the module that registers it.",
    )
    target: str | None = Field(
        None,
        pattern=r"\A[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$",
        description="Instead: `module:Class` with `reset` and `step` as Gymnasium has them; needs no gymnasium.",
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of `gymnasium.make` or of the class.")
    render: bool = Field(
        False,
        description="Show what `render()` gives after each step instead of the observation; with `kwargs: "
        "{render_mode: ansi}` a text.",
    )
    max_sessions: int = Field(64, ge=1, description="Environments at once; episodes wait, first come, first served.")

    @model_validator(mode="after")
    def _one_environment(self) -> GymnasiumOptions:
        if (self.id is None) == (self.target is None):
            raise ValueError("name the environment by either `id` or `target`")
        return self

    @property
    def environment(self) -> dict[str, Any]:
        """What an environment is made from."""
        return {"name": self.id, "target": self.target, "kwargs": self.kwargs, "render": self.render}
