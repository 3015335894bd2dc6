"""Files that name servers: JSON with `mcpServers`, and RLFactory's `.pydata`, a Python literal.

    {"mcpServers": {"time": {"command": "python", "args": ["-m", "mcp_server_time"]}}}
    [{'mcpServers': {'search': {'command': 'python', 'args': ['envs/tools/search.py']}}}]

A literal is read with `ast.literal_eval`: nothing in it is ever run. Such files are shared with other programs, so keys
that mean nothing here are left out with a warning, and a server with `disabled: true` is left out. `auth_token`, which
verl's files have, becomes a header. `${NAME}` and `${NAME:-default}` take environment variables, as in a toolrl config.
"""

from __future__ import annotations

import ast
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from toolrl.config.env import interpolate
from toolrl.config.paths import format_path
from toolrl.errors import ConfigError
from toolrl_plugin_mcp.server_options import ServerOptions

if TYPE_CHECKING:
    from toolrl_plugin_mcp.options import McpOptions

_log = logging.getLogger(__name__)


def all_servers(options: McpOptions, where: str | None) -> dict[str, ServerOptions]:
    """The servers of the file that the options name, and over them those of the options. Raises ConfigError."""
    found = read_servers(options.config, where) if options.config is not None else {}
    servers = {**found, **options.servers}
    if not servers:
        raise ConfigError(f"{options.config} names no server that is enabled", where=where)
    return servers


def read_servers(path: Path, where: str | None = None) -> dict[str, ServerOptions]:
    """The enabled servers of a file, in its order. Raises ConfigError."""
    literal = path.suffix == ".pydata"
    done = interpolate(_tree(path, literal, where), os.environ)
    if done.missing:
        raise ConfigError([f"{path}: {format_path(at)}: {problem}" for at, problem in done.missing.items()])
    servers: dict[str, ServerOptions] = {}
    for name, entry in _entries(done.tree, path):
        if entry.get("disabled") is not True:
            servers[name] = _server(name, entry, path, sse_by_default=literal)
    return servers


def _tree(path: Path, literal: bool, where: str | None) -> Any:
    try:
        text = path.read_text("utf-8-sig")
        return ast.literal_eval(text.strip()) if literal else json.loads(text)
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}", where=where) from None
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        # The text of a SyntaxError quotes the line, which may hold a key.
        line = getattr(error, "lineno", None)
        raise ConfigError(
            f"{path}{f':{line}' if line else ''} isn't {'a Python literal' if literal else 'JSON'}",
            where=where,
            hint=None if literal else "A Python literal has to be in a file called *.pydata.",
        ) from None


def _entries(tree: Any, path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(name, entry) of every server. Raises ConfigError."""
    for item in tree if isinstance(tree, list) else [tree]:
        if isinstance(item, str) or (isinstance(item, dict) and "name" in item):
            continue  # A tool of Qwen-Agent, which is not for the toolset `mcp`.
        servers = item.get("mcpServers", item.get("servers")) if isinstance(item, dict) else None
        if not isinstance(servers, dict):
            raise ConfigError(f"{path}: expected a mapping with the key 'mcpServers', whose value is a mapping by name")
        for name, entry in servers.items():
            if not isinstance(name, str) or not isinstance(entry, dict):
                raise ConfigError(f"{path}: mcpServers.{name}: expected a mapping with `command` or `url`")
            yield name, entry


def _server(name: str, entry: Mapping[str, Any], path: Path, *, sse_by_default: bool) -> ServerOptions:
    fields = {key: value for key, value in entry.items() if key in ServerOptions.model_fields and value is not None}
    if "type" not in fields and "transport" in entry:
        fields["type"] = entry["transport"]
    if entry.get("auth_token") and isinstance(fields.setdefault("headers", {}), dict):
        fields["headers"] = {**fields["headers"], "Authorization": f"Bearer {entry['auth_token']}"}
    if (sse_by_default or "auth_token" in entry) and "url" in fields:
        fields.setdefault("type", "sse")  # As RLFactory and verl read it.
    known = {*ServerOptions.model_fields, "disabled", "transport", "auth_token"}
    left_out = sorted(map(str, entry.keys() - known))
    if left_out:
        _log.warning("%s: mcpServers.%s: %s left out: it means nothing here", path, name, ", ".join(left_out))
    try:
        return ServerOptions.model_validate(fields)
    except ValidationError as error:
        problems = [
            f"{path}: {format_path(('mcpServers', name, *problem['loc']))}: "
            + problem["msg"].removeprefix("Value error, ")
            for problem in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigError(problems) from None
