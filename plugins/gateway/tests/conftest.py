"""A model that answers from a script, and a gateway in front of it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from toolrl.parsing.items import tool_messages
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox
from toolrl.types import CallError, CallRecord, Episode, Message, ParsedTurn, Segment, Task, ToolCall, ToolSpec, Turn
from toolrl_plugin_gateway.server import Gateway
from toolrl_plugin_gateway.session import Session
from toolrl_testing.fakes import FakeChatFormat, make_episode_context, make_task

Part = str | ToolCall | CallError | Exception


@dataclass
class FakeModel:
    """Follows Model: each question gets the next turn of the script, or what a function of the messages says."""

    script: Sequence[Part | Sequence[Part]] | Callable[[Sequence[Message]], Part]
    seconds: float = 0.0
    reasoning: str | None = None
    finish: str = "stop"
    asked: list[tuple[list[Message], list[ToolSpec], dict[str, Any]]] = field(default_factory=list)
    cancelled: int = 0

    async def ask(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), **limits: Any) -> Turn:
        index = len(self.asked)
        self.asked.append((list(messages), list(tools), limits))
        said = self.script(messages) if callable(self.script) else self.script[index]
        try:
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        parts = said if isinstance(said, list | tuple) else [said]
        for part in parts:
            if isinstance(part, Exception):
                raise part
        text = "".join(part for part in parts if isinstance(part, str))
        items = tuple(part for part in parts if isinstance(part, ToolCall | CallError))
        return Turn(index, (Segment("model", text, (10, 14)),), items, (), self.finish, text, self.reasoning)

    def count(self, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()) -> int:
        return 100 * len(messages) + len(tools)


class CallParser:
    """`<call>{"x": 1}</call>` calls `double`."""

    def stops(self, turn_text: str) -> Sequence[str]:
        return ()

    def parse(self, text: str, **_: Any) -> ParsedTurn:
        found = re.search("<call>(.*)</call>", text)
        if found is None:
            return ParsedTurn(content=text)
        called = ToolCall("double", json.loads(found[1]), span=found.span(), raw=found[0])
        return ParsedTurn((called,), text[: found.start()], status="calls")

    def render_results(self, records: Sequence[CallRecord]) -> Sequence[Message]:
        return tool_messages(records)


class Rig:
    """What the tests of the gateway need."""

    model = FakeModel

    @staticmethod
    def call(number: int, name: str = "add", **arguments: Any) -> ToolCall:
        return ToolCall(name, arguments, id=f"call_{number}")

    @staticmethod
    async def until(condition: Callable[[], Any]) -> None:
        """Wait for something that happens elsewhere."""
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    @staticmethod
    @asynccontextmanager
    async def listening(**roles: str) -> AsyncIterator[Gateway]:
        """A gateway that leaves no task behind."""
        before = asyncio.all_tasks()
        gateway = Gateway(roles)
        await gateway.start()
        try:
            yield gateway
        finally:
            await gateway.stop()
        await Rig.until(lambda: asyncio.all_tasks() <= before)

    @staticmethod
    @asynccontextmanager
    async def session(gateway: Gateway, model: Any) -> AsyncIterator[Session]:
        context = make_episode_context(make_task())
        async with gateway.session(context.task, model, context) as session:
            yield session

    @asynccontextmanager
    async def playing(self, model: Any, **roles: str) -> AsyncIterator[tuple[Gateway, Session]]:
        """An episode of a gateway of its own."""
        async with self.listening(**roles) as gateway, self.session(gateway, model) as session:
            yield gateway, session

    @staticmethod
    def environment(harness: Any, **options: Any) -> Environment:
        tools = ToolBox([], cut=lambda text, limit: text)
        return Environment("default", CallParser(), FakeChatFormat(), tools, harness=harness, **options)

    async def episodes(
        self, harness: Any, engine: Any, *, episodes: int = 1, max_turns: int = 8, task: Task | None = None
    ) -> list[Episode]:
        """Episodes that a harness plays, as a run has them; nothing of them is left."""
        before = asyncio.all_tasks()
        environment = self.environment(harness, max_turns=max_turns)
        runner = Runner(engine, {"default": environment}, concurrency=episodes, max_error_rate=1.0)
        try:
            await environment.start()
            (group,) = await runner.run([task or make_task()], episodes, Limits(500, 2000), round_id="test")
        finally:
            await environment.stop()
        await self.until(lambda: asyncio.all_tasks() <= before)
        return list(group.episodes)


@pytest.fixture
def rig() -> Rig:
    return Rig()
