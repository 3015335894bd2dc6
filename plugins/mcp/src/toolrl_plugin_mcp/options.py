"""Options of the toolset `mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from toolrl.config.frame import OldNames
from toolrl_plugin_mcp.server_options import ServerOptions


class RestartOptions(BaseModel):
    """What happens after a server's process ends or its connection breaks."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    attempts: int = Field(
        5,
        ge=0,
        description="Restarts in a row without a call that succeeded, after which the server counts as down: calls are "
        "answered at once, and episodes that may need it fail.",
    )
    first_delay: float = Field(
        0.5, gt=0, description="Seconds before the first restart; each further one waits twice as long."
    )
    max_delay: float = Field(
        30.0,
        gt=0,
        description="The longest wait in seconds; a server that counts as down is tried again so often.",
    )
    probe_timeout: float = Field(
        10.0,
        gt=0,
        description="After a call ran into its time limit, the server is asked to list its tools; one that doesn't "
        "answer within so many seconds hangs, and is restarted.",
    )


class McpOptions(BaseModel):
    """Options of the toolset `mcp`."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    old_names: ClassVar[OldNames] = {"max_result_chars": None, "images": None}

    servers: dict[str, ServerOptions] = Field(
        default_factory=dict, description="The servers by name, each as an entry of `mcpServers`."
    )
    config: Path | None = Field(
        None,
        description="A file with more servers: JSON with `mcpServers`, or a `.pydata` file, the Python literal of "
        "RLFactory.",
    )
    include: list[str] = Field(
        default_factory=list,
        description="Only tools whose name fits one of these patterns, with * and ?: `server-tool`, or the tool's name "
        "alone. Empty for all.",
    )
    exclude: list[str] = Field(default_factory=list, description="No tools whose name fits one of these patterns.")
    pure: list[str] = Field(
        default_factory=list,
        description="Tools that fit one of these patterns give the same answer to the same arguments and do nothing "
        "else: `policy.cache` may keep their answers.",
    )
    names: Literal["full", "short"] = Field(
        "full", description="What the model calls a tool: `full` is `server-tool`, `short` the tool's name alone."
    )
    session: Literal["shared", "episode"] = Field(
        "shared",
        description="`shared`: all episodes use the same processes and connections. `episode`: each episode has its "
        "own, started by its first call and ended with it; for servers that remember.",
    )
    instances: int = Field(
        1,
        ge=1,
        le=256,
        description="How many processes or connections of each server are shared; a call goes to the one with the "
        "fewest calls under way.",
    )
    max_sessions: int = Field(
        256, ge=1, description="With `session: episode`, how many episodes may have servers of their own at once."
    )
    start_timeout: float = Field(
        60.0, gt=0, description="Seconds a server may take to start, to shake hands and to list its tools."
    )
    max_message_bytes: int = Field(
        16 * 2**20,
        ge=2**16,
        description="Bytes that one message of a server may have: an answer, or a page of its list of tools. A call "
        "whose answer is longer gets an error that says so. Images count as base64.",
    )
    restart: RestartOptions = Field(
        default_factory=RestartOptions,
        description="What happens after a server's process ends or its connection breaks.",
    )

    def check_files(self) -> None:
        """Raises ConfigError for a file of servers that can't be read."""
        from toolrl_plugin_mcp.files import all_servers

        all_servers(self, None)

    @model_validator(mode="after")
    def _some_server(self) -> McpOptions:
        if not self.servers and self.config is None:
            raise ValueError("no server is named: give `servers`, or a file with them as `config`")
        return self
