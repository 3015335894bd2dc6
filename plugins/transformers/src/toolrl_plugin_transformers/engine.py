"""The engine `transformers`: samples inside the trainer's process, from the trainer's own tensors or a copy of them.

Without a copy an update costs nothing, and sampling and training may never run at once. With one, which it has where
rollout and training overlap, they may, and an update copies the trainer's weights, between two decoding steps and while
no update runs.

Without a copy, between a step's rollout and its update nothing is in flight and nothing has to be done. Where requests
may be in flight, hold the engine while the weights change:

    async with engine.hold():
        optimizer.step()
        await engine.update_weights(weights, version)

A hold begins between two decoding steps. Requests that arrive or are half done wait; after an update they go on
with the new weights, their keys and values computed anew, and each token keeps the version that sampled it.

Stop strings and ids: the token that completes one is the last and is kept whole. Log-probabilities: see
`sampling.py`.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext, WeightSource
from toolrl.types import Generation, MediaInput, Sampling
from toolrl_plugin_torch.adapters.lora import copy_sharing_frozen
from toolrl_plugin_torch.probe import check_digests, digests
from toolrl_plugin_transformers.batch import Batch
from toolrl_plugin_transformers.cache import default_cache_tokens
from toolrl_plugin_transformers.check import verify
from toolrl_plugin_transformers.model import ModelRunner
from toolrl_plugin_transformers.options import TransformersEngineOptions
from toolrl_plugin_transformers.request import Request
from toolrl_plugin_transformers.sampling import Uniforms
from toolrl_plugin_transformers.scoring import Text, finished
from toolrl_plugin_transformers.stops import StopStrings
from toolrl_plugin_transformers.worker import BatchThread


class TransformersEngine:
    """A `RolloutEngine`. Its coroutines may be called from any event loop, one loop at a time."""

    def __init__(self, options: TransformersEngineOptions | None, context: BuildContext) -> None:
        if context.weights is None:
            raise EngineError(
                f"engine {context.name!r} samples from the trainer's module, and the trainer has none",
                where=context.where or None,
            )
        self.options = options or TransformersEngineOptions()
        self._weights = context.weights
        # A copy: the worker thread decodes with it while the event loop may encode with the original.
        self._tokenizer = copy.deepcopy(context.tokenizer)
        self._random = random.Random(context.seed)
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._busy: set[str] = set()
        self._worker: BatchThread | None = None
        self._own = context.overlap
        self.verified: float | None = None
        """Greatest difference of log-probabilities that the check at start found."""

    async def start(self) -> None:
        """Bind the model, compare the slot loop with a plain forward pass, and start the worker thread."""
        worker = BatchThread(self._make_batch, self.options.prefill_tokens)
        try:
            await worker.start()
        except BaseException:
            # Cancelled, say: a thread that still computes when Python ends takes the process down with an abort.
            await worker.stop()
            raise
        self._worker = worker

    def _make_batch(self) -> Batch:
        module = self._weights.module()
        if self._own:
            module = copy_sharing_frozen(module).requires_grad_(False)
        known = len(self._tokenizer) if self._tokenizer is not None else None
        runner = ModelRunner(module, sampled_ids=known, routes=self.options.return_routes)
        self.verified = verify(runner, self._tokenizer)
        options = self.options
        batch = Batch(
            runner,
            max_batch=options.max_batch,
            prefill_tokens=options.prefill_tokens,
            cache_tokens=options.cache_tokens or default_cache_tokens(runner.shape),
        )
        batch.version = self._weights.version
        return batch

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[MediaInput] = ()
    ) -> Generation:
        """Sample after `prompt`. One generation a session at a time. Raises EngineError."""
        worker = self._started()
        request = self._request(worker.batch, list(prompt), sampling, session, media)
        if session in self._busy:
            raise EngineError(f"session {session!r} is generating already", hint="Use one session an episode.")
        self._busy.add(session)
        try:
            return await worker.generate(request)
        finally:
            self._busy.discard(session)

    async def score(
        self, ids: Sequence[int], start: int, *, temperature: float = 1.0, media: Sequence[MediaInput] = ()
    ) -> list[float]:
        """See ScoresTokens: by a forward pass of the model itself, with what else waits. Raises EngineError."""
        worker = self._started()
        text = Text(list(ids), start, temperature, tuple(media))
        problem = text.problem(worker.batch.runner)
        if problem is not None:
            raise EngineError(problem)
        worker.scorer.waiting.append(text)
        await asyncio.sleep(0)  # All that are asked for in one turn of the event loop are computed together.
        await worker.call(worker.score)
        return finished(text)

    def _request(
        self, batch: Batch, prompt: list[int], sampling: Sampling, session: str, media: Sequence[MediaInput]
    ) -> Request:
        problem = _problem(batch, prompt, sampling)
        if problem is not None:
            raise EngineError(problem, where=f"session {session!r}")
        seed = sampling.seed if sampling.seed is not None else self._random.getrandbits(63)
        return Request(session, prompt, sampling, Uniforms(seed), self._stop_strings(sampling.stop), tuple(media))

    def _stop_strings(self, stop: tuple[str, ...]) -> StopStrings | None:
        stop = tuple(text for text in stop if text)
        if not stop:
            return None
        if self._tokenizer is None:
            raise EngineError("stop strings need a tokenizer", hint="Give BuildContext.tokenizer, or stop_token_ids.")
        return self._stops.setdefault(stop, StopStrings(stop, self._tokenizer))

    async def close(self, session: str) -> None:
        """Forget a session's cache. Unknown sessions are fine."""
        worker = self._worker
        if worker is not None:
            worker.send(lambda: worker.close_session(session))

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Sample from these weights from now on. Half-done generations go on with them; see `hold`."""
        worker = self._started()
        module = weights.module()
        self._weights = weights

        def update() -> None:
            if self._own:
                worker.batch.take_over(module)
                self._check_copy(worker.batch.runner.module, module, version)
            elif module is not worker.batch.runner.module:
                raise EngineError("the new weights are another module's than those that the engine was started with")
            worker.batch.refresh(version)

        await worker.call(update)

    @staticmethod
    def _check_copy(copied: Any, module: Any, version: int) -> None:
        """Raises EngineError where a tensor of the copy isn't the trainer's."""
        mine, theirs = copied.state_dict(), module.state_dict()
        own = [name for name, tensor in mine.items() if tensor.data_ptr() != theirs[name].data_ptr()]
        found, wanted = (digests((name, tensors[name]) for name in own) for tensors in (mine, theirs))
        check_digests(
            found,
            wanted,
            owner=f"after the update to version {version} the engine's copy",
            hint="With rollout.max_staleness: 0 it samples from the trainer's own tensors.",
        )

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """While this is held no step runs and no weight is read. Requests wait. Holds may be nested."""
        async with self._started().hold():
            yield

    async def stop(self) -> None:
        """End the worker thread and free the cache. What is in flight fails. Also fine when never started."""
        if self._worker is not None:
            await self._worker.stop()

    def _started(self) -> BatchThread:
        if self._worker is None:
            raise EngineError("the engine is not started", hint="Await start() first.")
        return self._worker


def _problem(batch: Batch, prompt: list[int], sampling: Sampling) -> str | None:
    """What makes a request impossible, or None."""
    vocabulary, positions = batch.runner.vocabulary, batch.runner.max_positions
    longest = len(prompt) + sampling.max_new_tokens
    if not prompt:
        return "the prompt is empty"
    if min(prompt) < 0 or max(prompt) >= vocabulary:
        wrong = next(token for token in prompt if not 0 <= token < vocabulary)
        return f"the prompt holds id {wrong}, but the model's vocabulary has {vocabulary} entries"
    if sampling.max_new_tokens < 1:
        return f"max_new_tokens is {sampling.max_new_tokens}, it must be at least 1"
    if positions is not None and longest > positions:
        return (
            f"{len(prompt)} prompt tokens and {sampling.max_new_tokens} new ones exceed the {positions} that this "
            "model can have here; lower rollout.max_episode_tokens"
        )
    if longest > batch.cache_tokens:
        return f"{longest} tokens don't fit the cache of {batch.cache_tokens}; raise the engine's option cache_tokens"
    return None
