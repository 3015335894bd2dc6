"""A toolset whose one tool does what a test says, and what its calls come to under a policy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from toolrl.config.tool_policy import PolicyOptions
from toolrl.protocols import EpisodeContext
from toolrl.tools.endpoints import Endpoints
from toolrl.tools.toolbox import ToolBox, ToolBoxSession, ToolEntry
from toolrl.tools.traits import ToolTraits
from toolrl.types import CallRecord, Task, ToolCall, ToolResult, ToolSpec
from toolrl_testing.clock import run_in_virtual_time
from toolrl_testing.fakes import make_episode_context, make_task

Respond = Callable[[ToolCall], Awaitable[ToolResult | str]]


class Scene:
    """A tool box with one toolset of one or more tools, all of which call `respond`. Notes when calls begin."""

    def __init__(
        self,
        respond: Respond,
        policy: Mapping[str, Any],
        *,
        traits: ToolTraits | None = None,
        names: Sequence[str] = ("search",),
        entry: str = "engine",
        endpoints: Endpoints | None = None,
    ) -> None:
        self.respond = respond
        self.tool_traits = traits if traits is not None else ToolTraits()
        self.names_of_tools = names
        self.begun: list[float] = []
        self.options = PolicyOptions.model_validate(dict(policy))
        self.box = ToolBox([ToolEntry(entry, self, policy=self.options)], endpoints=endpoints)

    # The toolset.

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    @asynccontextmanager
    async def open(self, task: Task, episode: EpisodeContext) -> AsyncIterator[Any]:
        yield self

    # Its session.

    def specs(self) -> Sequence[ToolSpec]:
        return [ToolSpec(name, "Looks things up.") for name in self.names_of_tools]

    def traits(self, name: str) -> ToolTraits:
        return self.tool_traits

    async def call(self, call: ToolCall) -> ToolResult:
        self.begun.append(asyncio.get_running_loop().time())
        answer = await self.respond(call)
        return ToolResult(answer) if isinstance(answer, str) else answer

    async def reward(self) -> None:
        return None

    # What tests do.

    @asynccontextmanager
    async def session(self, episode: str = "e0", task: Task | None = None) -> AsyncIterator[ToolBoxSession]:
        task = task if task is not None else make_task()
        async with self.box.open(task, make_episode_context(task, episode_id=episode)) as session:
            yield session

    async def ask(self, episode: str = "e0", name: str = "search", task: Task | None = None, **arguments: Any) -> Any:
        """One call in an episode of its own: its record."""
        async with self.session(episode, task) as session:
            (record,) = await session.answer([ToolCall(name, arguments, id="call_1")])
            return record


@pytest.fixture
def scene() -> type[Scene]:
    return Scene


@pytest.fixture
def virtual() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs a coroutine in time that passes by itself."""
    return run_in_virtual_time


def metrics_of(record: CallRecord) -> dict[str, float]:
    return dict(record.result.metrics)
