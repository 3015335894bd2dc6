"""The tools of all servers, under names that every chat template and parser can carry.

A tool is called `server-tool`, or by its own name alone (`names: short`). A character other than a letter, a digit, `_`
and `-` becomes `_`; a first character that is neither a letter nor `_` gets a `_` before it; a name of more than 64
characters keeps its first 55, then `_` and eight digits of a hash of the whole. Two tools that would get one name are a
mistake of the config. What a server says of its tools is text from outside: a schema that can't be used is replaced by
one that takes any arguments (`schemas.py`).
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolrl.errors import ConfigError
from toolrl.tools.validation import MAX_TOOLS, catalogue_bound
from toolrl.types import ToolSpec
from toolrl_plugin_mcp.options import McpOptions
from toolrl_plugin_mcp.schemas import usable_schema

MAX_NAME = 64
_BAD = re.compile(r"[^A-Za-z0-9_-]")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CatalogEntry:
    """One tool that the model can call."""

    server: str
    tool: str
    """Its name at the server."""
    spec: ToolSpec
    pure: bool = False
    """By the config."""
    idempotent: bool = False
    """By what the server says of it: that it only reads, or that calling twice does no more than calling once."""


@dataclass(frozen=True)
class McpCatalog:
    """All tools by the names that the model knows."""

    entries: Mapping[str, CatalogEntry] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other names that mean one tool alone."""

    def specs(self) -> tuple[ToolSpec, ...]:
        """In the order of servers and of their lists."""
        return tuple(entry.spec for entry in self.entries.values())

    def resolve(self, name: str) -> str | None:
        """The name of the tool that `name` means: its own, or another that only one tool has; None where there is no
        such tool or more than one."""
        return name if name in self.entries else self.aliases.get(name)


def make_catalog(
    listed: Mapping[str, Sequence[Mapping[str, Any]]], options: McpOptions, where: str | None = None
) -> McpCatalog:
    """The tools that these servers list, as on the wire. Raises ConfigError for names that clash and for patterns that
    fit nothing."""
    entries: dict[str, CatalogEntry] = {}
    unused = {*options.include, *options.exclude, *options.pure}
    offered = [
        (server, tool, full_name(server, tool), raw)
        for server, tools in listed.items()
        for tool, raw in _by_name(server, tools).items()
    ]
    wanted = [one for one in offered if _wanted(one[1], one[2], options, unused)]
    if len(wanted) > MAX_TOOLS:
        raise ConfigError(
            f"the MCP servers have {len(wanted)} tools, more than the {MAX_TOOLS} that are taken",
            where=where,
            hint="Name those that the model needs with `include`.",
        )
    with catalogue_bound():
        schemas = [usable_schema(raw.get("inputSchema"), f"{server}: {tool!r}") for server, tool, _, raw in wanted]
    for (server, tool, full, raw), schema in zip(wanted, schemas, strict=True):
        name = full if options.names == "full" else clean_name(tool)
        if name in entries:
            first = entries[name]
            raise ConfigError(
                f"two tools get the name {name!r}: {first.tool!r} of {first.server!r} and {tool!r} of {server!r}",
                where=where,
                hint=f"Leave one out with `exclude: [{json.dumps(tool)}]`, rename a server, or use `names: full`.",
            )
        spec, pure = ToolSpec(name, _description(server, tool, raw), schema), _fits(tool, full, options.pure, unused)
        entries[name] = CatalogEntry(server, tool, spec, pure, _is_idempotent(raw))
    if unused:
        shown = ", ".join(full for _, _, full, _ in offered) or "none"
        raise ConfigError(f"no tool fits the pattern {sorted(unused)[0]!r}; there is {shown}", where=where)
    return McpCatalog(entries, _aliases(entries))


def full_name(server: str, tool: str) -> str:
    """`server-tool`, as a name that can be carried."""
    return clean_name(f"{server}-{tool}")


def clean_name(name: str) -> str:
    """The nearest name that can be carried; see the module's docstring."""
    cleaned = _BAD.sub("_", name)
    if not cleaned or not (cleaned[0].isalpha() or cleaned[0] == "_"):
        cleaned = f"_{cleaned}"
    if len(cleaned) > MAX_NAME:
        digest = hashlib.sha256(name.encode(errors="replace")).hexdigest()[:8]
        cleaned = f"{cleaned[: MAX_NAME - 9]}_{digest}"
    return cleaned


def _by_name(server: str, tools: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    own: dict[str, Mapping[str, Any]] = {}
    for raw in tools:
        name = str(raw.get("name") or "")
        if own.setdefault(name, raw) is not raw:  # A call can't say which, so it is the server's first.
            _log.warning("the MCP server %r lists the tool %r twice: the first is taken", server, name)
    return own


def _wanted(tool: str, full: str, options: McpOptions, unused: set[str]) -> bool:
    included = _fits(tool, full, options.include, unused) or not options.include
    return not _fits(tool, full, options.exclude, unused) and included


def _fits(tool: str, full: str, patterns: Sequence[str], unused: set[str]) -> bool:
    """Whether a tool fits one of the patterns. Those that it fits are taken out of `unused`."""
    found = [p for p in patterns if fnmatch.fnmatchcase(full, p) or fnmatch.fnmatchcase(tool, p)]
    unused.difference_update(found)
    return bool(found)


def _is_idempotent(raw: Mapping[str, Any]) -> bool:
    hints = raw.get("annotations")
    return isinstance(hints, Mapping) and True in (hints.get("readOnlyHint"), hints.get("idempotentHint"))


def _aliases(entries: Mapping[str, CatalogEntry]) -> dict[str, str]:
    """Short names, full names and names as the server spells them, where they mean one tool."""
    meanings: dict[str, set[str]] = {}
    for name, entry in entries.items():
        spelled = f"{entry.server}-{entry.tool}"
        for other in {entry.tool, clean_name(entry.tool), spelled, clean_name(spelled)}:
            meanings.setdefault(other, set()).add(name)
    return {other: names.pop() for other, names in meanings.items() if len(names) == 1 and other not in entries}


def _description(server: str, tool: str, raw: Mapping[str, Any]) -> str:
    said = str(raw.get("description") or raw.get("title") or "").strip()
    return said or f"The tool {tool} of {server}."
