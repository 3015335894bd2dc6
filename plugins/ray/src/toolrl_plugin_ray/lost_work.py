"""Metrics of a pool of workers: what was lost and started again."""

from __future__ import annotations


class LostWork:
    """Counts since they were last reported."""

    def __init__(self) -> None:
        self.workers = 0
        self.groups = 0

    def metrics(self, ready: int) -> dict[str, float]:
        """Under the names that reports know; counting begins anew. `ready` is the number of workers now."""
        found = {
            "cluster/workers": float(ready),
            "cluster/restarted_workers": float(self.workers),
            "cluster/restarted_groups": float(self.groups),
        }
        self.workers = self.groups = 0
        return found
