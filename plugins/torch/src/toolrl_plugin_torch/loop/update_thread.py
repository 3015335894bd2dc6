"""The thread that updates run in, and how they end and are saved when the run is interrupted."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from toolrl.loop.evaluate import Evaluator
from toolrl.plugins.events import Events
from toolrl.rollouts.source import TakesWeights
from toolrl.runs.status import RunPhase
from toolrl_plugin_torch.base_trainer import BaseTrainer
from toolrl_plugin_torch.loop.saver import Saver

P = ParamSpec("P")
T = TypeVar("T")


class UpdateThread:
    """One thread for all torch work of training: torch keeps a pool of threads for each that calls it.

    A context manager: leaving it ends the thread.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "toolrl-update")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, bool]:
        """Run to the end, even when cancelled meanwhile: the result, and whether a cancellation waits."""
        future = self._executor.submit(function, *args, **kwargs)
        waiting = asyncio.wrap_future(future)
        interrupted = False
        while not waiting.done():
            try:
                await asyncio.wait([waiting])
            except asyncio.CancelledError:
                interrupted = True
        return waiting.result(), interrupted

    def __enter__(self) -> UpdateThread:
        return self

    def __exit__(self, *error: object) -> None:
        self._executor.shutdown()


@dataclass(kw_only=True)
class SavedLoop:
    """What fine-tuning and reinforcement learning have in common: updates in a thread, and checkpoints."""

    trainer: BaseTrainer
    engine: TakesWeights
    events: Events
    saver: Saver
    evaluator: Evaluator | None = None
    phase: RunPhase = field(default_factory=RunPhase)
    _thread: UpdateThread = field(default_factory=UpdateThread)

    @asynccontextmanager
    async def _saving(self) -> AsyncIterator[None]:
        """Around all steps: on every way out the last complete step is saved."""
        with self._thread:
            try:
                yield
            finally:
                if self.saver.due(sys.exception()):
                    await self._save()

    async def _save_if_due(self) -> None:
        due, interrupted = await self._thread.run(self.saver.scheduled)
        if due:
            await self._save()
        if interrupted:
            raise asyncio.CancelledError

    async def _save(self) -> None:
        with self.phase.during(f"saving the checkpoint of step {self.trainer.step}"):
            path, interrupted = await self._thread.run(self.saver.save)
        self.events.checkpoint_saved(self.saver.last_step, path)
        if interrupted:
            raise asyncio.CancelledError
