"""Options of the toolset `mcp`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

Transport = Literal["stdio", "streamable-http", "sse"]

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_HEADER_VALUE = re.compile(r"(?:[!-~](?:[ \t!-~]*[!-~])?)?\Z")
_TRANSPORTS: dict[str, Transport] = {
    "stdio": "stdio",
    "http": "streamable-http",
    "streamablehttp": "streamable-http",
    "sse": "sse",
}


class ServerOptions(BaseModel):
    """One MCP server, in the usual form of `mcpServers`: a `command` to start, or the `url` of one that runs."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    command: str | None = Field(
        None, min_length=1, description="The program to start, found on PATH; speaks over stdio."
    )
    args: list[str] = Field(default_factory=list, description="Its arguments.")
    env: dict[str, SecretStr] = Field(
        default_factory=dict,
        description="Environment variables of the program. Besides them it gets HOME, LOGNAME, PATH, SHELL, TERM and "
        "USER, and nothing else of the run's environment.",
    )
    cwd: Path | None = Field(None, description="The folder that it starts in; None for that of the run.")
    url: str | None = Field(None, description="The address of a server that runs elsewhere, http:// or https://.")
    headers: dict[str, SecretStr] = Field(
        default_factory=dict, description="HTTP headers of every request, such as Authorization."
    )
    type: Transport | None = Field(
        None,
        description="`stdio`, `streamable-http` (also `http`) or `sse`. None takes stdio for a command, SSE for a URL "
        "whose path ends in /sse, and streamable HTTP for every other URL.",
    )

    @field_validator("type", mode="before")
    @classmethod
    def _usual_spellings(cls, value: Any) -> Any:
        """Clients spell it streamable-http, streamable_http, streamableHttp, http."""
        if isinstance(value, str):
            return _TRANSPORTS.get(value.lower().replace("-", "").replace("_", ""), value)
        return value

    @field_validator("url")
    @classmethod
    def _over_http(cls, value: str | None) -> str | None:
        if value is not None and re.match(r"(?i)https?://[^/?#\s]", value) is None:
            raise ValueError("a url begins with http:// or https:// and a host")
        return value

    @field_validator("headers")
    @classmethod
    def _sendable(cls, value: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name, secret in value.items():
            if not _HEADER_NAME.match(name):
                raise ValueError(f"{name!r:.80} is no name of a header")
            if not _HEADER_VALUE.match(secret.get_secret_value()):
                raise ValueError(
                    f"the header {name!r} begins or ends with a blank, or holds a line break or what isn't ASCII; a "
                    "key that was read from a file often ends with a line break"
                )
        return value

    @model_validator(mode="after")
    def _one_way(self) -> ServerOptions:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a command to start or a url, and this one has " + self._has())
        if self.command is None and (self.args or self.env or self.cwd is not None):
            raise ValueError("args, env and cwd belong to a command; a server with a url takes headers")
        if self.url is None and self.headers:
            raise ValueError("headers belong to a url; a server with a command takes env")
        if self.type is not None and (self.type == "stdio") != (self.url is None):
            raise ValueError(f"type {self.type} doesn't go with {'a url' if self.url else 'a command'}")
        return self

    @property
    def transport(self) -> Transport:
        """How it is reached."""
        if self.type is not None:
            return self.type
        if self.url is None:
            return "stdio"
        return "sse" if self.url.partition("?")[0].rstrip("/").endswith("/sse") else "streamable-http"

    def _has(self) -> str:
        return "both" if self.command is not None else "neither"


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
        "else: equal calls of a turn run once, and `policy.cache` may keep their answers.",
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
    images: Literal["auto", "media", "note"] = Field(
        "auto",
        description="Images in results: `media` hands them to the model, `note` says in words that there was one, "
        "`auto` hands them over where the model takes images.",
    )
    resources: bool = Field(
        False,
        description="Add the tools `list_resources` and `read_resource` for each server that has resources.",
    )
    start_timeout: float = Field(
        60.0, gt=0, description="Seconds a server may take to start, to shake hands and to list its tools."
    )
    restart: RestartOptions = Field(
        default_factory=RestartOptions,
        description="What happens after a server's process ends or its connection breaks.",
    )
    max_result_chars: int = Field(
        1_000_000,
        ge=1000,
        description="A longer text of a result loses its middle, before `policy.max_output_tokens` cuts it further.",
    )
    max_message_bytes: int = Field(
        16 * 2**20,
        ge=2**16,
        description="A longer message of a server breaks its connection. Over SSE with mcp 2.x the limit is 1 MiB at "
        "most.",
    )

    def check_files(self) -> None:
        """Raises ConfigError for a file of servers that can't be read."""
        from toolrl_plugin_mcp.files import all_servers

        all_servers(self, None)

    @model_validator(mode="after")
    def _some_server(self) -> McpOptions:
        if not self.servers and self.config is None:
            raise ValueError("no server is named: give `servers`, or a file with them as `config`")
        if self.session == "episode" and self.instances > 1:
            raise ValueError(
                "`instances` are of shared servers; with `session: episode` each episode has its own anyway"
            )
        return self
