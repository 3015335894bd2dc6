"""toolrl: reinforcement learning of language models that use tools over many turns."""

from toolrl.component import Component
from toolrl.hookspecs import hookimpl

__all__ = ["Component", "__version__", "hookimpl"]
__version__ = "0.1.0"
