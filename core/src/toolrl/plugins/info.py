"""One plugin: its origin, its status and its components."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from toolrl.component import Component

PYTHON_OBJECTS = "python-objects"
"""Name of the plugin that holds a run's Python objects."""

Status = Literal["ok", "unmet", "disabled", "incompatible", "broken"]


@dataclass(frozen=True)
class PluginInfo:
    """One installed plugin, usable or not."""

    name: str
    """The name of its entry point."""
    distribution: str = ""
    """The distribution that brings it; empty where it was handed in as a module."""
    version: str = ""
    """The distribution's version; empty where it isn't known."""
    status: Status = "ok"
    """`ok`, `unmet` if a package that it requires is missing or has another version, `disabled` by TOOLRL_DISABLE,
    `incompatible` with this toolrl, or `broken`."""
    reason: str = ""
    """One line: why it can't be used, or what it lacks."""
    hint: str = ""
    """The next command."""
    traceback: str = ""
    """Of what broke it, where that was an exception."""
    components: dict[str, list[Component[Any]]] = field(default_factory=dict)
    """By kind, as registered; empty unless the plugin is usable."""
    module: str = ""
    """What its entry point names."""
    requires: Sequence[str] = ()
    """The distribution's `Requires-Dist` lines."""

    def unusable(self, status: Status, reason: str, hint: str, traceback: str = "") -> PluginInfo:
        """The same plugin with a status and the reason for it."""
        return replace(self, status=status, reason=reason, hint=hint, traceback=traceback)

    @property
    def usable(self) -> bool:
        """True if it is imported and its components are listed. A run refuses those of an `unmet` plugin."""
        return self.status in ("ok", "unmet")

    def describe(self) -> str:
        """Status and reason in a line: `broken: ImportError: …`."""
        return f"{self.status}: {self.reason}" if self.reason else self.status
