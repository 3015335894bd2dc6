"""Small environments with `reset` and `step`, as Gymnasium has them."""

from __future__ import annotations

import sys
import threading
from typing import Any

HOLD = threading.Event()
"""Set to let hanging steps go."""
CLOSED: list[int] = []
"""Counts of environments that were closed."""


class Counter:
    """Counts its steps; ends with `stop`. Other words have effects of their own."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.count = start
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.count = (options or {}).get("start", self.start)
        self.seed = seed
        return f"seed {seed}, options {options}", {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if action == "raise":
            raise KeyError("no such key")
        if action == "hang":
            while not HOLD.wait(0.05):
                pass
        if action == "print":
            print("noise", flush=True)
            sys.stderr.flush()
        if action == "nan":
            return "", float("nan"), False, False, {}
        self.count += 1
        return {"text": f"{self.count} {action}"}, 0.25 * self.count, action == "stop", action == "late", {}

    def close(self) -> None:
        CLOSED.append(self.count)


class Broken:
    """Can't be reset."""

    def reset(self, **_: Any) -> Any:
        raise RuntimeError("no reset today")

    def step(self, action: str) -> Any:
        raise RuntimeError("no step today")
