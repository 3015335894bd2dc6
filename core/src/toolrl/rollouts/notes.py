"""What an episode's tools hand on, as plain data.

Tools fill `EpisodeContext.notes` while the episode runs; `Episode.notes` is a copy of it, made once, when they are
released: what rewards and observers read is what stands in the record, and a call that was given up and goes on in its
thread changes neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from toolrl.errors import ToolsetError

DEEPEST = 32
"""Levels of lists and mappings inside each other; more of them go round in a circle."""
MOST_ITEMS = 4096
"""Of an array that becomes a list."""


def plain_notes(notes: Mapping[str, Any], hide: Callable[[str], str] = str) -> dict[str, Any]:
    """A copy that JSON can hold: numbers, texts, lists, mappings with texts as keys. `hide` takes secrets out of the
    texts. Raises ToolsetError that names what is something else."""
    try:
        return {_key(key, "", hide): _plain(value, f"[{key!r:.80}]", hide, 1) for key, value in list(notes.items())}
    except ToolsetError:
        raise
    except Exception as error:
        # An object of a tool's own that only looks like a mapping or an array.
        raise ToolsetError(
            f"a tool's episode.notes can't be read: {type(error).__name__}: {error}",
            hint="Note plain values: numbers, texts, lists, or mappings with texts as keys.",
        ) from error


def _plain(value: Any, place: str, hide: Callable[[str], str], depth: int) -> Any:
    if isinstance(value, str):
        return hide(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)  # An enum's or numpy's own kind, too.
    if depth < DEEPEST:
        # A list or dict may be a tool's own, which a stray thread still fills.
        if isinstance(value, Mapping):
            items = list(value.items())
            return {
                _key(key, place, hide): _plain(item, f"{place}[{key!r:.80}]", hide, depth + 1) for key, item in items
            }
        if isinstance(value, list | tuple):
            return [_plain(item, f"{place}[{number}]", hide, depth + 1) for number, item in enumerate(list(value))]
        # numpy and torch scalars and small arrays, without importing either
        if hasattr(value, "tolist") and math.prod(getattr(value, "shape", (MOST_ITEMS + 1,))) <= MOST_ITEMS:
            return _plain(value.tolist(), place, hide, depth + 1)
    raise _wrong(place, type(value).__name__ if depth < DEEPEST else f"nested more than {DEEPEST} levels deep")


def _key(key: object, place: str, hide: Callable[[str], str]) -> str:
    if not isinstance(key, str):
        raise _wrong(place, f"a mapping with the key {key!r:.80}")
    return hide(key)


def _wrong(place: str, what: str) -> ToolsetError:
    return ToolsetError(
        f"a tool's episode.notes{place} is {what}, expected numbers, texts, lists, or mappings with texts as keys",
        hint="Keep other objects in `episode.shared`, which ends with the episode.",
    )
