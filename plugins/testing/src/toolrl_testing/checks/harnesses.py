"""Contracts of harnesses: they play episodes to their end, several at once, and leave nothing running."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolrl.protocols import Harness, RolloutEngine
from toolrl.rollouts.environment import Environment, Limits
from toolrl.rollouts.runner import Runner
from toolrl.tools.toolbox import ToolBox
from toolrl.types import Episode, Generation, Task
from toolrl_testing.checks import require
from toolrl_testing.fakes import FakeChatFormat, FakeParser, ScriptedEngine, make_task


class _Waiting(ScriptedEngine):
    """Never answers, and ends what awaits an answer as soon as it is asked."""

    def __init__(self) -> None:
        super().__init__([])
        self.task: asyncio.Future[Any] | None = None

    async def generate(self, *given: Any, **more: Any) -> Generation:
        if self.task is not None:
            self.task.cancel()
        return await asyncio.get_running_loop().create_future()


def play(harness: Harness, says: Sequence[str], task: Task | None = None) -> Episode:
    """An episode that the harness plays; the model says these texts, one a turn."""
    texts = iter(says)
    return asyncio.run(_played(harness, ScriptedEngine(lambda prompt: next(texts, says[-1])), task))[0]


async def _played(harness: Harness, engine: RolloutEngine, task: Task | None, count: int = 1) -> Sequence[Episode]:
    environment = Environment("default", FakeParser(), FakeChatFormat(), ToolBox([]), harness=harness, max_turns=64)
    before = asyncio.all_tasks()
    try:
        await environment.start()
        runner = Runner(engine, {"default": environment}, max_error_rate=1.0)
        running = runner.run([task or make_task()], count, Limits(1000, 100_000), round_id="contract")
        playing = asyncio.create_task(running)
        if isinstance(engine, _Waiting):
            engine.task = playing
        await asyncio.wait([playing])
    finally:
        await environment.stop()
    left = asyncio.all_tasks() - before
    require(not left, f"it left {len(left)} tasks running")
    return [] if playing.cancelled() else playing.result()[0].episodes


def check_plays(harness: Harness, says: Sequence[str], task: Task | None = None) -> None:
    """Two episodes at once end without a failure, and nothing of them is left."""
    for episode in asyncio.run(_played(harness, ScriptedEngine([*says, *says[-1:] * 63]), task, count=2)):
        failure = episode.failure
        require(failure is None, f"play() failed: {failure and failure.message}\n{failure and failure.traceback}")


def check_cancel(harness: Harness, task: Task | None = None) -> None:
    """An episode that is cancelled while the model answers ends, and leaves nothing."""
    asyncio.run(_played(harness, _Waiting(), task))
