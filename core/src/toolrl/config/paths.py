"""Paths of values in a config: `environments.default.tools[0].options.precision`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

Path = tuple[str | int, ...]
"""Keys and list indices from the top."""

_PLAIN = re.compile(r"[\w-]+\Z")
_PART = re.compile(r"""\.?(?: (?P<key>[^.\[\]"=]+) | \[(?P<index>\d+)\] | \["(?P<quoted>[^"]*)"\] )""", re.VERBOSE)


def format_path(path: Iterable[str | int], base: str = "") -> str:
    """A path as text, after `base`. A key that isn't a plain word is put in `["…"]`."""
    text = base
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.match(str(part)):
            text += f".{part}" if text else str(part)
        else:
            text += f'["{part}"]'
    return text


def parse_path(text: str) -> Path:
    """A path from text; an index may be written `tools[0]` or `tools.0`. Raises ValueError where it isn't one."""
    parts: list[str | int] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or (match["key"] is not None and position > 0 and text[position] != "."):
            raise ValueError(f"{text!r} is no path: expected one like environments.default.tools[0].options.precision")
        if match["index"] is not None:
            parts.append(int(match["index"]))
        else:
            parts.append(match["key"] if match["key"] is not None else match["quoted"])
        position = match.end()
    if not parts or text.startswith("."):
        raise ValueError(f"{text!r} is no path: expected one like trainer.steps")
    return tuple(parts)


def step(node: Any, part: str | int) -> str | int | None:
    """The key or index by which `part` is in `node`, or None where it isn't: `0` and `"0"` both find a list's first."""
    if isinstance(node, dict):
        return next((key for key in (part, str(part)) if key in node), None)
    if isinstance(node, list) and str(part).isdigit() and int(part) < len(node):
        return int(part)
    return None


def get(tree: Any, path: Path) -> Any:
    """The value at a path; None where there is none."""
    for part in path:
        key = step(tree, part)
        if key is None:
            return None
        tree = tree[key]
    return tree
