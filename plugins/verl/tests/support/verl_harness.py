"""Toolsets of the verl plugin as a run has them, for its tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from toolrl.protocols import EpisodeContext
from toolrl.tools.policy import PolicyOptions
from toolrl.tools.toolbox import ToolBox, ToolEntry
from toolrl.types import Task, ToolCall, ToolResult, ToolSpec
from toolrl_plugin_verl.toolset import VerlToolset
from toolrl_testing import make_episode_context, make_task

Make = Callable[..., VerlToolset]

ANSWER = """
      type: function
      function:
        name: {name}
        description: Takes an answer.
        parameters:
          type: object
          properties: {{answer: {{type: string, description: The answer}}}}
          required: [answer]
"""


def entry(cls: str, name: str, config: str = "{type: native}") -> str:
    return f"  - class_name: verl_guide_tools.{cls}\n    config: {config}\n    tool_schema:{ANSWER.format(name=name)}"


YOUR_TOOL = "tools:\n" + entry("YourTool", "your_tool")
GEO3K = "  - class_name: verl.tools.geo3k_tool.Geo3kTool\n    config: {type: native}\n"


@asynccontextmanager
async def started(toolset: VerlToolset, **policy: Any) -> AsyncIterator[ToolBox]:
    """The toolset in a tool box, as a run has it."""
    box = ToolBox([ToolEntry("verl", toolset, policy=PolicyOptions(**policy))])
    await box.start()
    try:
        yield box
    finally:
        await box.stop()


class Played(NamedTuple):
    """What came of an episode."""

    results: list[ToolResult]
    rewards: list[tuple[str, float]]
    opening: list[tuple[str, str]]
    specs: Sequence[ToolSpec]


def play(toolset: VerlToolset, *calls: tuple[str, dict[str, Any]], kwargs: Any = None, **policy: Any) -> Played:
    """One episode of a run of its own, with a turn for each call."""

    async def run() -> Played:
        task, context = task_with(kwargs)
        async with started(toolset, **policy) as box:
            async with box.open(task, context) as session:
                opening = [(message.role, message.content) for message in await session.opening()]
                records = [(await session.answer([ToolCall(*call)]))[0] for call in calls]
                rewards = [(entry.source, entry.value) for entry in await session.rewards()]
                specs = session.specs()
            return Played([record.result for record in records], rewards, opening, specs)

    return asyncio.run(run())


def task_with(tools_kwargs: Any = None, **fields: Any) -> tuple[Task, EpisodeContext]:
    """A task and the context of an episode of it."""
    task = make_task(tools_kwargs=tools_kwargs or {}, **fields)
    return task, make_episode_context(task)


def kwargs(name: str, **create: Any) -> dict[str, Any]:
    return {name: {"create_kwargs": create}}
