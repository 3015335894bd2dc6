"""Remarks on rows of data: what is read, but not as its author may expect. Each kind is said once for a data set, with
the place of the first row.

A reader calls `remark`. Whoever reads rows for a run holds a `Remarks` and knows the row's place;
`toolrl config check --data` collects the remarks on all rows instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark on one row."""

    kind: str
    """Remarks of one kind are said once."""
    text: str
    place: Callable[[], str] | None = None
    """Gives the row's place. A function, because a place takes time to find out and is rarely needed."""

    def __str__(self) -> str:
        return self.text if self.place is None else f"{self.place()}: {self.text}"


_found: ContextVar[list[Remark] | None] = ContextVar("toolrl_row_remarks", default=None)


def remark(kind: str, text: str) -> None:
    """Remark on the row that is being read; logged at once if nobody collects remarks."""
    found = _found.get()
    if found is None:
        _log.warning("%s", text)
    else:
        found.append(Remark(kind, text))


@contextmanager
def collected() -> Iterator[list[Remark]]:
    """Collect the remarks that are made while this is entered."""
    found: list[Remark] = []
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)


class Remarks:
    """Logs each kind of remark once; passes all on if the caller collects them."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    @contextmanager
    def on_row(self, place: Callable[[], str]) -> Iterator[None]:
        """Take the remarks on a row while it is read; `place` gives the row's place."""
        with collected() as found:
            yield
        outer = _found.get()
        for each in {each.kind: each for each in reversed(found)}.values():
            placed = each if each.place is not None else replace(each, place=place)
            if outer is not None:
                outer.append(placed)
            elif each.kind not in self._said:
                self._said.add(each.kind)
                _log.warning("%s (said once)", placed)


def notes(found: Sequence[Remark]) -> list[str]:
    """A line for each kind of remark: the first one, and how many rows there are of it."""
    kinds: dict[str, list[Remark]] = {}
    for each in found:
        kinds.setdefault(each.kind, []).append(each)
    return [f"{same[0]}" + (f" (and {len(same) - 1} more)" if len(same) > 1 else "") for same in kinds.values()]
