"""A toolset's session of one episode, as the tool box holds it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from toolrl.config.tool_policy import PolicyOptions
from toolrl.errors import ToolError, ToolrlError, ToolsetError
from toolrl.protocols import ToolSession, Toolset
from toolrl.tools.cancellation import Watch
from toolrl.tools.loop_watch import run_component
from toolrl.tools.policy import CallBudget, CallPolicy
from toolrl.tools.toolset import traits_of
from toolrl.tools.traits import ToolTraits
from toolrl.types import Markers, ToolSpec

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ToolEntry:
    """One toolset of an environment."""

    name: str
    """What the config calls it; messages and reward entries use it."""
    toolset: Toolset
    rename: Mapping[str, str] = field(default_factory=dict)
    """Old tool name to new. A task speaks of tools by their new names."""
    policy: PolicyOptions = field(default_factory=PolicyOptions)
    weight: float = 1.0
    """Of the toolset's own reward."""
    markers: Mapping[str, Markers] = field(default_factory=dict)
    """By new name; they take precedence over the tool's own."""
    rewrites: bool = False
    """Whether it is there to rewrite the history."""


class OpenSession:
    """A toolset's session of one episode, with errors attributed to the toolset."""

    def __init__(
        self,
        entry: ToolEntry,
        policy: CallPolicy,
        manager: Callable[[], AbstractAsyncContextManager[ToolSession]],
    ) -> None:
        """`manager` is the toolset's `open`, with its arguments."""
        self.entry = entry
        self.policy = policy
        self.session: ToolSession
        self.specs: tuple[ToolSpec, ...]
        """Under the tools' own names."""
        self.traits: dict[str, ToolTraits]
        """Of each of its tools, by the tool's own name."""
        self.budget: CallBudget
        self._open = manager
        self._manager: AbstractAsyncContextManager[ToolSession]

    @property
    def shown_name(self) -> str:
        """The tool's name where the toolset is one tool, else the toolset's."""
        one = self.specs[0].name if len(self.specs) == 1 else None
        return self.entry.name if one is None else self.entry.rename.get(one, one)

    async def ask(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Await something of the session. Raises ToolsetError."""
        return await blamed(self.entry.name, f"{what} failed", work, self.entry.policy.session_timeout)

    async def __aenter__(self) -> OpenSession:
        await blamed(self.entry.name, "opening a session failed", self._wait)
        self.session = await self.ask("opening a session", self._enter)
        try:
            await self.ask("opening a session: specs() or traits()", self._inspect)
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        together = f"The tools of {self.entry.name!r} together"
        subject = f"The tool {self.shown_name!r}" if len(self.specs) == 1 else together
        self.budget = CallBudget(self.entry.policy, subject)
        return self

    async def _wait(self) -> None:
        """For its turn, where sessions are few: that has no time limit but the toolset's own."""
        self._manager = self._open()
        wait_turn = getattr(self._manager, "wait_turn", None)
        if wait_turn is not None:
            await wait_turn()

    async def _enter(self) -> ToolSession:
        return await self._manager.__aenter__()

    async def _inspect(self) -> None:
        """What the session's tools are."""
        self.specs = tuple(self.session.specs())
        self.traits = {spec.name: traits_of(self.session, spec.name) for spec in self.specs}

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the session. What fails here is logged: the episode is over, and its result or error stands."""
        watch = Watch()
        try:
            async with asyncio.timeout(self.entry.policy.session_timeout):
                await run_component(f"tool {self.entry.name!r}", self._manager.__aexit__, kind, error, trace)
        except BaseException as raised:  # see above
            if not watch.failed(raised):
                raise
            if raised is not error:
                _log.exception("tool %r: closing its session failed", self.entry.name)


async def blamed(name: str, what: str, work: Callable[[], Awaitable[T]], seconds: float | None = None) -> T:
    """The value of `work`, within so many seconds. Raises ToolsetError, which begins with `what`."""
    watch, limit = Watch(), asyncio.timeout(seconds)
    try:
        async with limit:
            return await run_component(f"tool {name!r}", work)
    except ToolError as error:
        raise ToolsetError(f"{what}: {error.message}", where=name) from error
    except ToolrlError:
        raise
    except BaseException as error:
        if not watch.failed(error):
            raise
        if limit.expired():
            text = f"{what}: no answer within {seconds:g} s (policy.session_timeout, or the `timeout` of a history)"
            raise ToolsetError(text, where=name) from None
        raise ToolsetError(f"{what}: {type(error).__name__}: {error}", where=name) from error
