"""Text of models and tools, made safe to print: control characters as marks of themselves."""

from __future__ import annotations

import unicodedata

_DIRECTIONS = ("LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI")
"""Bidirectional classes of characters that turn the text after them around."""


def visible(text: str) -> str:
    """A text whose control and direction characters stand as marks of themselves."""
    return "".join(char if char in "\n\t" or not _steers(char) else _mark(char) for char in text)


def _steers(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in _DIRECTIONS


def _mark(char: str) -> str:
    return chr(0x2400 + ord(char)) if ord(char) < 0x20 else f"\\u{ord(char):04x}"
