"""Other libraries' errors in messages of ours."""

from __future__ import annotations


def first_line(error: BaseException) -> str:
    """The first line of an error's text, or its class where it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
