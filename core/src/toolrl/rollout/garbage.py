"""Fewer passes of Python's cycle collector while episodes run.

A rollout makes objects by the hundred thousand and keeps nearly all of them: what they hold becomes the episodes. The
collector looks for cycles whenever 700 more objects are there than before, finds nothing, and starts over at everything
else again and again, which takes a third of a turn's time. So it looks less often meanwhile. What is freed without it,
nearly everything, is freed as ever.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

OBJECTS = 100_000
"""New objects after which the collector looks, while episodes run."""

_running = 0
_before: tuple[int, int, int] = (0, 0, 0)
_ours: tuple[int, int, int] = (0, 0, 0)


@contextmanager
def collected_rarely() -> Iterator[None]:
    """Around episodes, however many of these are open at once: the last one to end puts things back. Nothing is changed
    where the collector is switched off or set to look even less often, nor put back where somebody else set it
    meanwhile. For one thread, that of the event loop."""
    global _running, _before, _ours
    if not _running:
        _before = gc.get_threshold()
        if 0 < _before[0] < OBJECTS:
            gc.set_threshold(OBJECTS, *_before[1:])
        _ours = gc.get_threshold()
    _running += 1
    try:
        yield
    finally:
        _running -= 1
        if not _running and gc.get_threshold() == _ours:
            gc.set_threshold(*_before)
