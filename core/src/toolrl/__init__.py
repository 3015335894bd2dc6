"""toolrl: reinforcement learning of language models that use tools over many turns."""

from typing import TYPE_CHECKING, Any

from toolrl.component import Component
from toolrl.hookspecs import hookimpl
from toolrl.version import __version__

if TYPE_CHECKING:
    from toolrl.api import evaluate, rollout, train

__all__ = ["Component", "__version__", "evaluate", "hookimpl", "rollout", "train"]


def __getattr__(name: str) -> Any:
    """The commands as functions: importing them takes as long as a command's start, so only where they are used."""
    if name in ("evaluate", "rollout", "train"):
        from toolrl import api

        return getattr(api, name)
    raise AttributeError(f"module 'toolrl' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Lists the commands too, which completion in an editor or a notebook goes by."""
    return sorted({*globals(), *__all__})
