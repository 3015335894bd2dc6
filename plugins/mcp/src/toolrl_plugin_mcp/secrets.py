"""Keeps values of `env`, of `headers` and of a URL's user, password and query out of messages and logs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from urllib.parse import parse_qsl, quote, urlsplit

from toolrl_plugin_mcp.server_options import ServerOptions

SHORTEST = 4
"""Shorter values aren't looked for: `1` is in too many texts to be a secret."""
HIDDEN = "***"
_ORDINARY = ("debug", "development", "error", "false", "info", "none", "null", "production", "test", "true", "warning")
"""Values of settings and no secrets; without them an error couldn't be read."""
_LOGGERS = (
    "client",
    "httpx",
    "httpx2",
    "mcp.client.client",
    "mcp.client.session",
    "mcp.client.sse",
    "mcp.client.stdio",
    "mcp.client.streamable_http",
    "mcp.shared.jsonrpc_dispatcher",
    "mcp.shared.session",
)
"""Those of the SDK and its HTTP library that may say an address, a header or a message."""


class Secrets:
    """Takes the secret values of some servers out of texts."""

    def __init__(self, servers: Iterable[ServerOptions]) -> None:
        values = {form for server in servers for value in _values(server) for form in _forms(value)}
        self._values = sorted(values, key=len, reverse=True)

    def hide(self, text: str) -> str:
        """The text without them."""
        for value in self._values:
            text = text.replace(value, HIDDEN)
        return text


class QuietLogs(logging.Filter):
    """While a toolset runs: drops what the SDK and its HTTP library log. It may hold secrets, and tracebacks of inner
    tasks for every lost connection, of which the toolset says the same in one line."""

    def install(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def remove(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        return False


def _forms(value: str) -> Iterable[str]:
    """The ways in which a text may show a secret; none where it is too short to be one, or an ordinary word."""
    for text in (value, value.strip(), *value.splitlines()):
        if len(text) >= SHORTEST and text.lower() not in _ORDINARY:
            yield from (text, json.dumps(text)[1:-1], repr(text)[1:-1], quote(text, safe=""))


def _values(server: ServerOptions) -> Iterable[str]:
    for secret in (*server.env.values(), *server.headers.values()):
        value = secret.get_secret_value()
        yield value
        # `Bearer abc`: the second word alone is the secret.
        yield value.partition(" ")[2]
    if server.url is not None:
        parts = urlsplit(server.url)
        yield from (part for part in (parts.username, parts.password, parts.query) if part)
        yield from (value for _, value in parse_qsl(parts.query))
        yield from (pair.partition("=")[2] for pair in parts.query.split("&"))
