"""Counts what the tools of a run lean on and what of it died and was started anew: servers, the limits of a cluster.

A process notes its own by name, so that what several processes saw (one limiter's restart) counts once.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable

LIMITS, SERVERS = "limits", "servers"


class ServiceRestarts:
    """Those that one process knows of: its own, and what others told it."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], None] = {}
        self._reported = 0

    def limits(self, life: str) -> None:
        """The cluster's limits are there again, by this name."""
        self.hear([(LIMITS, life)])

    def server(self) -> None:
        """A server, or the connection to one, works again."""
        self.hear([(SERVERS, uuid.uuid4().hex)])

    def hear(self, told: Iterable[Iterable[str]]) -> None:
        """What another process tells of itself: all since its start, each a kind and a name that no other has."""
        for kind, name in told:
            self._known[kind, name] = None

    def told(self) -> list[tuple[str, str]]:
        """All of them since the start, in order."""
        return list(self._known)

    def metrics(self) -> dict[str, float]:
        """Since this was last asked, under the names that reports know; of what there was none, nothing."""
        new = Counter(kind for kind, _ in self.told()[self._reported :])
        self._reported = len(self._known)
        counts = {"cluster/restarted_limits": new[LIMITS], "cluster/restarted_servers": new[SERVERS]}
        return {name: float(count) for name, count in counts.items() if count}

    def totals(self) -> dict[str, int]:
        """By kind, all of them, those of processes that are gone included."""
        return dict(Counter(kind for kind, _ in self._known))
