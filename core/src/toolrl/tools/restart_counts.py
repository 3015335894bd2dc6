"""Counts restarts of what the tools of a run depend on: their servers, and the limits of a cluster."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable

LIMITS, SERVERS = "limits", "servers"


class RestartCounts:
    """Restarts that one process knows of. Each has a name: one that several processes report counts once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], None] = {}
        self._reported = 0

    def add_limits(self, name: str) -> None:
        """The cluster's limits were restarted, under a name that no other restart has."""
        self.merge([(LIMITS, name)])

    def add_server(self) -> None:
        """A server, or the connection to one, works again."""
        self.merge([(SERVERS, uuid.uuid4().hex)])

    def merge(self, restarts: Iterable[Iterable[str]]) -> None:
        """Add what `all` of another process returned."""
        for kind, name in restarts:
            self._known[kind, name] = None

    def all(self) -> list[tuple[str, str]]:
        """Kind and name of each restart since the start, in order."""
        return list(self._known)

    def metrics(self) -> dict[str, float]:
        """Counts since the last call, those above 0."""
        new = Counter(kind for kind, _ in self.all()[self._reported :])
        self._reported = len(self._known)
        counts = {"cluster/restarted_limits": new[LIMITS], "cluster/restarted_servers": new[SERVERS]}
        return {name: float(count) for name, count in counts.items() if count}

    def totals(self) -> dict[str, int]:
        """Counts by kind since the start."""
        return dict(Counter(kind for kind, _ in self._known))
