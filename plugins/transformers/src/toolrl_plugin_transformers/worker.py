"""The thread around a `Batch`: it owns all of the engine's torch work."""

from __future__ import annotations

from collections.abc import Callable

import torch

from toolrl.errors import EngineError, ToolrlError
from toolrl.types import Generation
from toolrl_common.engine_thread import EngineThread
from toolrl_plugin_transformers.batch import Batch
from toolrl_plugin_transformers.request import Request
from toolrl_plugin_transformers.scoring import Scorer

_SMALLER = "Lower the engine's options cache_tokens, max_batch or prefill_tokens, then go on with --resume."


class BatchThread(EngineThread):
    """Steps a batch. `make_batch` is called in the thread."""

    batch: Batch

    def __init__(self, make_batch: Callable[[], Batch], prefill_tokens: int) -> None:
        super().__init__("toolrl-transformers-engine")
        self._make_batch = make_batch
        self.scorer = Scorer(prefill_tokens)

    async def generate(self, request: Request) -> Generation:
        """Sample for a request. Cancelling gives its place back."""
        generation: Generation = await self.submit(request, lambda: self.batch.add(request))
        return generation

    def score(self) -> None:
        """Score the texts that wait. Runs in the thread."""
        self.batch.runner.enter()
        try:
            self.scorer.run(self.batch.runner)
        finally:
            if self.batch.idle:
                self.batch.leave()

    def _run(self) -> None:
        # Not inference mode: a model may keep a tensor that it makes, and training couldn't use it afterwards.
        with torch.no_grad():
            super()._run()

    def open(self) -> None:
        self.batch = self._make_batch()

    def close(self) -> None:
        if self._failure is None:
            self.batch.leave()

    @property
    def has_work(self) -> bool:
        return not self._pauses and not self.batch.idle

    def step(self) -> None:
        batch = self.batch
        batch.runner.enter()
        done = batch.step()
        if batch.idle:
            batch.leave()  # Before the results arrive and the trainer begins.
        for request in done:
            self.finish(request, None if request.error else request.result(), request.error)

    def drop(self, request: Request) -> None:
        self.batch.cancel(request)

    def explain(self, error: BaseException) -> ToolrlError:
        if isinstance(error, EngineError):
            return error
        hint = _SMALLER if isinstance(error, torch.OutOfMemoryError) else None
        return EngineError(f"the engine's thread failed: {type(error).__name__}: {error}", hint=hint)

    def pause(self) -> None:
        super().pause()
        self.batch.leave()

    def close_session(self, session: str) -> None:
        """Forget a session. A request that it still has fails."""
        request = self.batch.close(session)
        if request is not None:
            self.finish(request, None, EngineError(f"session {session!r} was closed while it was generating"))
