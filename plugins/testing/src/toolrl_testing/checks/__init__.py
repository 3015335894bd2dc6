"""What every component of a kind must keep, as functions that raise AssertionError with what was broken.

`PluginContract` applies them to all components of a plugin; a test can call one of them by itself.
"""

from __future__ import annotations

from typing import NoReturn


def fail(message: str) -> NoReturn:
    """A broken contract."""
    raise AssertionError(message)


def require(condition: object, message: str) -> None:
    """Raises AssertionError with the message unless the condition holds. Unlike `assert`, also under `python -O`."""
    if not condition:
        fail(message)
