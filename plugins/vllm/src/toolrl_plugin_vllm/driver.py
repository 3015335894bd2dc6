"""The thread that steps vLLM's engine: requests are added and aborted, weights are replaced and the probe is read
between two steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from toolrl.errors import EngineError, ToolrlError
from toolrl_common.engine_thread import EngineThread
from toolrl_plugin_vllm import build


class Driver(EngineThread):
    """Steps vLLM's `LLMEngine`. `make` and `take_down` are called in the thread."""

    def __init__(self, make: Callable[[], Any], take_down: Callable[[Any], None]) -> None:
        super().__init__("toolrl-vllm-engine")
        self._make, self._take_down = make, take_down
        self._urgent: set[str] = set()
        self._numbers = itertools.count()
        self.engine: Any = None

    async def request(self, prompt: list[int], params: Any, *, urgent: bool = False) -> Any:
        """A finished `RequestOutput`. `params` makes the `SamplingParams`, in the thread. Cancelling it aborts it. For
        an urgent one steps are taken in a pause, too, for all that is under way."""
        name = str(next(self._numbers))

        def add() -> None:
            try:
                build.add(self.engine, name, prompt, params())
            except Exception as error:  # vLLM refuses what it can't serve in many ways
                raise EngineError(f"vLLM refuses a request: {error}") from error
            if urgent:
                self._urgent.add(name)

        return await self.submit(name, add)

    def open(self) -> None:
        self.engine = self._make()

    def close(self) -> None:
        if self.engine is not None:
            engine, self.engine = self.engine, None
            self._take_down(engine)

    @property
    def has_work(self) -> bool:
        return bool(self._replies) and (not self._pauses or bool(self._urgent))

    def step(self) -> None:
        for output in self.engine.step():
            if output.finished:
                self._urgent.discard(output.request_id)
                self.finish(output.request_id, output)

    def drop(self, request: str) -> None:
        self._urgent.discard(request)
        self.engine.abort_request([request])

    def explain(self, error: BaseException) -> ToolrlError:
        if isinstance(error, ToolrlError):
            return error
        return EngineError(f"vLLM failed: {type(error).__name__}: {error}")
