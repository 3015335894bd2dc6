"""Options of one MCP server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

Transport = Literal["stdio", "streamable-http", "sse"]

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

    @model_validator(mode="after")
    def _one_way(self) -> ServerOptions:
        if (self.command is None) == (self.url is None):
            raise ValueError("a server has either a command to start or a url, and this one has " + self._has())
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


def plain_values(secrets: Mapping[str, SecretStr]) -> dict[str, str]:
    """The values of `env` or `headers`, to be sent."""
    return {name: value.get_secret_value() for name, value in secrets.items()}
