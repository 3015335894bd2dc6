"""The engine `vllm`: vLLM inside the trainer's process, stepped by a thread of its own.

Weights are copied at each update: vLLM loads the trainer's tensors in place, its prefix cache is emptied, requests that
are half done are computed anew, and the log-probabilities of a fixed text are compared with the trainer's.
Each token keeps the version that sampled it.

    async with engine.hold():
        optimizer.step()
        await engine.update_weights(weights, version)

Stop strings and ids: the token that completes one is the last and is kept whole. Log-probabilities: see `extension.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from toolrl.errors import ConfigError, EngineError
from toolrl.protocols import BuildContext, WeightSource
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import build, requests
from toolrl_plugin_vllm.config_folder import config_folder
from toolrl_plugin_vllm.driver import Driver
from toolrl_plugin_vllm.options import VllmEngineOptions
from toolrl_plugin_vllm.token_engine import TokenEngine
from toolrl_plugin_vllm.weights import WeightTransfer

ROUNDED = 0.5
"""The tolerance for weights in 8 bits: it finds tensors that are missing or swapped, where digests don't already."""


class VllmEngine(TokenEngine):
    """A `RolloutEngine`. Its coroutines may be called from any event loop, one loop at a time."""

    def __init__(self, options: VllmEngineOptions | None, context: BuildContext) -> None:
        if context.weights is None:
            raise EngineError(
                f"engine {context.name!r} starts with the trainer's weights, and the trainer has none",
                where=context.where or None,
            )
        self.options = options or VllmEngineOptions()
        rounded = ROUNDED if self.options.quantization else None
        super().__init__(context, context.weights, self.options.tolerance or rounded)
        self._weights: WeightSource = context.weights
        self.seeded = context.deterministic
        if self.options.sleep_level and context.overlap:
            raise ConfigError(
                f"sleep_level is {self.options.sleep_level}, and with rollout.max_staleness above 0 vLLM samples while "
                "the trainer works",
                where="engine.options.sleep_level",
                hint="Set one of the two to 0.",
            )
        self._loads = WeightTransfer()
        self._asleep = False

    async def start(self) -> None:
        """Start vLLM, hand it the trainer's weights, and compare. Raises EngineError, ConfigError without vLLM."""
        self._driver = Driver(self._build, build.take_down)
        try:
            await self._driver.start()
            self._started = True
            await self._verify("after its start")
        except BaseException:
            self._started = False
            await self._driver.stop()
            raise

    def _build(self) -> Any:
        weights, tokenizer = self._weights, self._context.tokenizer
        known = len(tokenizer) if tokenizer is not None else None
        with config_folder(weights.save_config) as folder:
            engine = build.build(self.options, self._context, model=str(folder), known_ids=known)
        try:
            self._load(engine, weights, weights.version)
        except BaseException:
            build.take_down(engine)
            raise
        self._max_length = int(engine.vllm_config.model_config.max_model_len)
        return engine

    def _problem(self, prompt: Sequence[int], sampling: Sampling) -> str | None:
        return "vLLM sleeps until its weights are updated" if self._asleep else super()._problem(prompt, sampling)

    async def _sample(self, ids: list[int], sampling: Sampling, seed: int | None) -> Generation:
        output = await self._request(ids, requests.sampling_arguments(sampling, seed))
        return requests.generation(output.outputs[0], output.num_cached_tokens)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Sample from these weights from now on. Requests that are half done go on with them, computed anew. Raises
        EngineError where vLLM doesn't compute what the trainer does."""
        self._check_started()
        self._weights = weights
        await self._driver.call(lambda: self._load(self._driver.engine, weights, version))
        await self._verify(f"after the update to version {version}")

    def _load(self, engine: Any, weights: WeightSource, version: int) -> None:
        try:
            if self._asleep:
                engine.wake_up(["weights"])
            self._loads.load(engine, weights)
            if self._asleep:
                # Not sooner: the memory for whatever the load needs besides is taken from the cache's.
                engine.wake_up(["kv_cache"])
                self._asleep = False
        except EngineError:
            raise
        except Exception as error:
            raise EngineError(
                f"vLLM can't take the weights of version {version}: {type(error).__name__}: {error}", where="engine"
            ) from error
        # What is cached was computed with other weights. Requests that are half done lose theirs, too.
        engine.reset_prefix_cache(reset_running_requests=True)
        engine.set_weight_version(str(version))

    async def rest(self) -> None:
        """Give back GPU memory until the next `update_weights`, as `sleep_level` says; with 0 nothing happens. Raises
        EngineError while something is generated."""
        if not self.options.sleep_level or self._asleep:
            return
        if self._sessions:
            raise EngineError(f"vLLM can't sleep while {len(self._sessions)} sessions are generating")
        self._check_started()
        self._asleep = True
        await self._driver.call(lambda: self._driver.engine.sleep(self.options.sleep_level, mode="keep"))

    async def _verify(self, when: str) -> None:
        """Compare a fixed text's log-probabilities with the trainer's. Raises EngineError where they differ."""
        if not self.options.verify_weights:
            return
        await asyncio.to_thread(self._loads.check, self._weights, f"{when} vLLM")
        await self._compare(f"{when} vLLM", digests=True)

    async def _prompt_logprobs(self, ids: list[int]) -> list[float]:
        arguments = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False, "ignore_eos": True}
        # Also while the engine is held, which is when weights are updated.
        output = await self._request(ids, arguments, urgent=True)
        return [float(entry[token].logprob) for token, entry in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """While this is held no step is taken, but for those that an update's check needs. Requests wait, and go on
        afterwards. Holds may be nested."""
        self._check_started()
        async with self._driver.hold():
            yield

    async def stop(self) -> None:
        """End the thread and free what vLLM holds. What is under way fails. Also fine when never started."""
        if self._started:
            await self._driver.stop()

    async def _request(self, ids: list[int], arguments: dict[str, Any], *, urgent: bool = False) -> Any:
        return await self._driver.request(ids, lambda: _parameters(arguments), urgent=urgent)


def _parameters(arguments: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    # Only the finished output is read; vLLM would make one of each request at each step.
    return SamplingParams(**arguments, output_kind=RequestOutputKind.FINAL_ONLY)
