"""One call on its way to its tool, and the layers that it goes through."""

from __future__ import annotations

import asyncio
import copy
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from toolrl.protocols import ToolSession
from toolrl.tools.results import check_result
from toolrl.tools.threads import Job
from toolrl.tools.traits import ToolTraits
from toolrl.types import ToolCall, ToolResult, ToolSpec


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A crash of a tool: text for the model, and this for whoever has to mend it."""

    tool: str
    message: str
    traceback: str


@dataclass(slots=True)
class Invocation:
    """One call on its way through the layers."""

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
    """What layers did for the call, as metrics."""
    hide: Callable[[str], str] = str
    """Takes secrets out of an error's text; before it is cut, as nobody would know half a secret again."""
    strays: list[asyncio.Task[Any]] = field(default_factory=list)
    """Work of this attempt that didn't end when it was cancelled."""
    jobs: list[Job[Any]] = field(default_factory=list)
    """What this attempt runs in threads."""

    def note(self, what: str, amount: float = 1.0) -> None:
        """Add to a metric of this call."""
        self.effort[what] = self.effort.get(what, 0.0) + amount


Next = Callable[[Invocation], Coroutine[Any, Any, ToolResult]]
Layer = Callable[[Invocation, Next], Coroutine[Any, Any, ToolResult]]


def compose(layers: Sequence[Layer], last: Next) -> Next:
    """One function of several layers, the first outermost."""
    inner = last
    for layer in reversed(layers):
        inner = functools.partial(_step, layer, inner)
    return inner


def _step(layer: Layer, inner: Next, invocation: Invocation) -> Coroutine[Any, Any, ToolResult]:
    return layer(invocation, inner)


_IMMUTABLE = frozenset({str, int, float, bool, type(None)})


async def call_tool(invocation: Invocation) -> ToolResult:
    """The call itself, with what came back checked. The tool gets arguments of its own: what it does to them must not
    change what the episode says the model wrote."""
    call, own = invocation.call, invocation.call.arguments
    flat = type(own) is dict and _IMMUTABLE.issuperset(map(type, own.values()))
    own = dict(own) if flat else copy.deepcopy(own)
    if type(call) is ToolCall:  # What `changed` does, in a third of its time.
        call = ToolCall(call.name, own, call.id, call.span, call.tokens, call.raw, call.recovered)
    else:
        call = replace(call, arguments=own)
    result = check_result(await invocation.session.call(call), invocation.shown)
    return result if result.error is None else replace(result, text=invocation.hide(result.text))
