"""From an observation to the text that the model sees."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolrl.protocols import ChatFormat
from toolrl.tools.truncate import token_cut

_log = logging.getLogger(__name__)
Show = Callable[[Any], str]
PATIENCE = 16
"""Observations in which a path may lead nowhere before it is told; some fields are filled at an episode's end only."""


def make_show(paths: Sequence[str] | None, chat: ChatFormat | None, max_tokens: int) -> Show:
    """What makes the text of an observation, cut to so many tokens where there is a chat format to count them."""
    cut = token_cut(chat) if chat is not None else None
    missing = dict.fromkeys(paths or (), 0)

    def show(observation: Any) -> str:
        _count_missing(observation, missing)
        text = clean(observation_text(observation, paths))
        return cut(text, max_tokens, "middle")[0] if cut is not None else text

    return show


def _count_missing(observation: Any, missing: dict[str, int]) -> None:
    """Warn once of a path that has led nowhere in so many observations and never to anything. `missing` counts them by
    path; a path that is told of, or that led somewhere, is taken out."""
    for path in list(missing):
        if at_path(observation, path) is not None:
            del missing[path]
            continue
        missing[path] += 1
        if missing[path] == PATIENCE:
            del missing[path]
            keys = ", ".join(map(str, observation)) if isinstance(observation, Mapping) else type(observation).__name__
            _log.warning("observation: %r led nowhere in %d observations, which hold %s", path, PATIENCE, keys)


def observation_text(observation: Any, paths: Sequence[str] | None = None) -> str:
    """What the paths lead to, joined by blank lines; paths that lead nowhere give nothing. Without paths: a text as it
    is, the only text of an object, else its JSON without `metadata`. An empty observation gives an empty text."""
    if paths is not None:
        pieces = (as_text(at_path(observation, path)) for path in paths)
        return "\n\n".join(piece for piece in pieces if piece)
    if not isinstance(observation, Mapping):
        return as_text(observation)
    shown = {key: value for key, value in observation.items() if key != "metadata" and value not in (None, "", [], {})}
    if len(shown) == 1 and isinstance(text := next(iter(shown.values())), str):
        return text
    return as_text(shown) if shown else ""


def clean(text: str) -> str:
    """A text that every tokenizer takes: half surrogate pairs, which JSON may hold, become question marks."""
    return text.encode(errors="replace").decode()


def at_path(value: Any, path: str) -> Any:
    """What a dotted path leads to in objects and lists, or None."""
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list | tuple) and part.lstrip("-").isdecimal() and len(part) < 10:
            place = int(part)
            value = value[place] if -len(value) <= place < len(value) else None
        else:
            return None
    return value


def as_text(value: Any) -> str:
    """A text as it is, nothing of None, and the JSON of everything else."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return str(value)
