"""From what a model says to an environment's action.

The model's text is hostile: the search for a pattern is bound to the last 4096 characters, so that a pattern whose time
grows with the square of the text's length can't hold up a run. What fits no action is an `ActionError`, whose message
names what would.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from toolrl_plugin_openenv.options import ActionOptions

SEARCHED = 4096
"""Characters at the end of a turn that a pattern is searched in."""
SHOWN = 80


class ActionError(ValueError):
    """The turn holds no valid action. The message is for the model."""


class ActionReader:
    """Reads a turn's text. `kind` is the JSON Schema type that the environment wants: string, integer, number, boolean,
    or None for anything. `first` is the number of the first of `choices` where it wants numbers."""

    def __init__(self, options: ActionOptions, kind: str | None = "string", *, first: int = 0) -> None:
        self._pattern = re.compile(options.pattern, re.DOTALL) if options.pattern is not None else None
        self._choices = _choices(options.choices, kind, first)
        self._names = list(options.choices or ())
        self._kind = kind

    def read(self, text: str) -> Any:
        """The action that a turn's text means. Raises ActionError."""
        said = self._found(text)
        if self._choices is not None:
            key = said.casefold()
            if key not in self._choices:
                raise ActionError(f"{_shown(said)} is no action here. Say one of: {', '.join(self._names)}.")
            return self._choices[key]
        if not said:
            raise ActionError("Your turn was empty. Say what to do.")
        return _converted(said, self._kind)

    def _found(self, text: str) -> str:
        if self._pattern is None:
            return text.strip()
        last: re.Match[str] | None = None
        for match in self._pattern.finditer(text[-SEARCHED:]):
            last = match
        if last is None:
            form = f" Say one of: {', '.join(self._names)}." if self._names else ""
            raise ActionError(f"Your turn holds no action of the form {self._pattern.pattern}.{form}")
        groups = last.groupdict()
        found = groups["action"] if "action" in groups else last.group(1 if self._pattern.groups else 0)
        return (found or "").strip()


def _choices(given: list[str] | dict[str, Any] | None, kind: str | None, first: int) -> Mapping[str, Any] | None:
    """By name without case; a list means numbers where the environment wants these."""
    if given is None:
        return None
    if isinstance(given, dict):
        return {name.strip().casefold(): value for name, value in given.items()}
    numbered = kind in ("integer", "number")
    return {name.strip().casefold(): place if numbered else name for place, name in enumerate(given, first)}


def _converted(said: str, kind: str | None) -> Any:
    read, problem = _READERS.get(kind or "", (str, ""))
    try:
        return read(said)
    except (ValueError, KeyError, RecursionError):
        raise ActionError(f"{_shown(said)} is {problem}") from None


def _number(said: str) -> float:
    value = float(said)
    if not math.isfinite(value):
        raise ValueError
    return value


def _json(said: str, kind: type) -> Any:
    value = json.loads(said)
    if not isinstance(value, kind):
        raise ValueError
    return value


_READERS: Mapping[str, tuple[Callable[[str], Any], str]] = {
    "integer": (int, "no whole number. Say a number."),
    "number": (_number, "no number. Say a number."),
    "boolean": (lambda said: {"true": True, "false": False}[said.casefold()], "neither true nor false."),
    "array": (lambda said: _json(said, list), "no JSON array."),
    "object": (lambda said: _json(said, dict), "no JSON object."),
}
"""By the JSON Schema type: how an action is read, and what one is that can't be."""


def _shown(said: str) -> str:
    return repr(said if len(said) <= SHOWN else said[:SHOWN] + "…")
