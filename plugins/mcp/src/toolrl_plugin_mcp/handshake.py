"""Connects by the version of the SDK that is installed."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from toolrl_plugin_mcp.sdk import MAJOR, Link, Signals, Streams


def connect(streams: Streams, signals: Signals) -> AbstractAsyncContextManager[Link]:
    """Shake hands over a transport. Left by the task that entered it."""
    from toolrl_plugin_mcp import sdk1, sdk2

    return sdk2.connect(streams, signals) if MAJOR >= 2 else sdk1.connect(streams, signals)
