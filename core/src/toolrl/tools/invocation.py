"""One call on its way to its tool."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolrl.protocols import ToolSession
from toolrl.tools.results import check_result
from toolrl.tools.threads import Job
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall, ToolResult, ToolSpec


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A crash of a tool, for its author. The model reads a text."""

    tool: str
    message: str
    traceback: str


@dataclass(slots=True)
class Invocation:
    """One call on its way through its toolset's policy."""

    call: ToolCall
    """Under the tool's own name."""
    shown: str
    """The name that the model knows, which messages use."""
    spec: ToolSpec
    session: ToolSession
    traits: ToolTraits
    failures: list[ToolFailure] = field(default_factory=list)
    """The episode's; crashes are added."""
    endpoint: str = ""
    """What the tool depends on: its own endpoint, or the toolset's name."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the task gives this tool: its create_kwargs and so on."""
    episode: str = ""
    """The episode's id."""
    effort: dict[str, float] = field(default_factory=dict)
    """What the policy did for the call, as metrics."""
    hide: Callable[[str], str] = str
    """Takes secrets out of an error's text; before it is cut, as half a secret isn't recognised."""
    strays: list[asyncio.Task[Any]] = field(default_factory=list)
    """Work of this attempt that didn't end when it was cancelled."""
    jobs: list[Job[Any]] = field(default_factory=list)
    """What this attempt runs in threads."""

    def note(self, what: str, amount: float = 1.0) -> None:
        """Add to a metric of this call."""
        self.effort[what] = self.effort.get(what, 0.0) + amount


async def call_tool(invocation: Invocation) -> ToolResult:
    """The call itself, with its result checked. The tool gets a copy of the arguments: the episode keeps what the model
    wrote."""
    call = replace(invocation.call, arguments=copy.deepcopy(invocation.call.arguments))
    result = check_result(await invocation.session.call(call), invocation.shown)
    return result if result.error is None else replace(result, text=invocation.hide(result.text))
