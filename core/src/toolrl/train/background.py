"""The thread that updates run in, and how they end when the run is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

import torch

from toolrl.errors import RunStoppedError

P = ParamSpec("P")
T = TypeVar("T")


class UpdateThread:
    """One thread for all torch work of training: torch keeps a pool of threads for each that calls it.

    A context manager: leaving it ends the thread.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "toolrl-update")

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> tuple[T, bool]:
        """Run to the end, even when cancelled meanwhile: the result, and whether a cancellation waits. Raises
        RunStoppedError where the device's memory runs out."""
        future = self._executor.submit(_within_memory, partial(function, *args, **kwargs))
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


def _within_memory(work: Callable[[], T]) -> T:
    try:
        return work()
    except torch.OutOfMemoryError as error:
        raise RunStoppedError(
            f"the device's memory ran out: {str(error).partition('. GPU')[0]}",
            hint="Lower tokens_per_microbatch (of trainer or sft), set model.gradient_checkpointing to true, or give "
            "the engine fewer cache_tokens; then go on from the last checkpoint with --resume.",
        ) from error
