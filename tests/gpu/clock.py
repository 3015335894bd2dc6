"""Time on a device: wall time between two moments at which it has nothing left to do."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any


class Clock:
    """Of one device."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device = torch.device(device)

    def now(self) -> float:
        """Seconds, once the device has done all that it was given."""
        import torch

        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def times(self, work: Callable[[], Any], *, rounds: int, warm: int) -> list[float]:
        """Seconds of each round, after some that don't count."""
        for _ in range(warm):
            work()
        found = []
        for _ in range(rounds):
            started = self.now()
            work()
            found.append(self.now() - started)
        return found


class Memory:
    """The most memory that a device had in use since `reset`."""

    def __init__(self, device: Any) -> None:
        import torch

        self._device = torch.device(device)

    def reset(self) -> None:
        import torch

        if self._device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Bytes; of a CPU those of the process since it began."""
        import torch

        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
