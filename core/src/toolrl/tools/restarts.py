"""What the tools of a run lean on, and what of it died and was started anew: servers, the limits of a cluster.

A process notes its own by name, so that what several processes saw (one limiter's restart) counts once.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable

LIMITS, SERVERS = "limits", "servers"

Restart = tuple[str, str]
"""(kind, a name that no other restart of the kind has)."""


class Restarts:
    """Those that one process knows of."""

    def __init__(self) -> None:
        self._noted: dict[Restart, None] = {}

    def limits(self, life: str) -> None:
        """The cluster's limits are there again, by this name."""
        self._noted[LIMITS, life] = None

    def server(self) -> None:
        """A server, or the connection to one, works again."""
        self._noted[SERVERS, uuid.uuid4().hex] = None

    def told(self) -> list[Restart]:
        """All of them since the start."""
        return list(self._noted)


class RestartCount:
    """Counts what processes tell, each restart once."""

    def __init__(self) -> None:
        self._heard: set[Restart] = set()
        self._new: Counter[str] = Counter()
        self._all: Counter[str] = Counter()

    def hear(self, told: Iterable[Iterable[str]]) -> None:
        """Of one process, what it tells of itself: all since its start."""
        for kind, name in told:
            if (kind, name) not in self._heard:
                self._heard.add((kind, name))
                self._new[kind] += 1
                self._all[kind] += 1

    def metrics(self) -> dict[str, float]:
        """Since this was last asked, under the names that reports know; of what there was none, nothing."""
        new, self._new = self._new, Counter()
        counts = {"cluster/restarted_limits": new[LIMITS], "cluster/restarted_servers": new[SERVERS]}
        return {name: float(count) for name, count in counts.items() if count}

    def totals(self) -> dict[str, int]:
        """By kind, all that was heard of, those of processes that are gone included."""
        return dict(self._all)
