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
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from toolrl.errors import ConfigError, EngineError
from toolrl.protocols import BuildContext, WeightSource
from toolrl.types import Generation, MediaInput, Sampling
from toolrl_plugin_vllm import build, requests
from toolrl_plugin_vllm.adapter import AdapterTransfer
from toolrl_plugin_vllm.driver import Driver
from toolrl_plugin_vllm.options import VllmEngineOptions
from toolrl_plugin_vllm.sessions import Sessions
from toolrl_plugin_vllm.weights import WeightTransfer


class VllmEngine:
    """A `RolloutEngine`. Its coroutines may be called from any event loop, one loop at a time."""

    def __init__(self, options: VllmEngineOptions | None, context: BuildContext) -> None:
        if context.weights is None:
            raise EngineError(
                f"engine {context.name!r} got no weights; vLLM is started with the trainer's",
                where=context.where or None,
                hint="Give BuildContext.weights.",
            )
        self.options = options or VllmEngineOptions()
        if self.options.sleep_level and context.overlap:
            raise ConfigError(
                f"sleep_level is {self.options.sleep_level}, and with rollout.max_staleness above 0 vLLM samples while "
                "the trainer works",
                where="engine.options.sleep_level",
                hint="Set one of the two to 0.",
            )
        self._context = context
        self._weights = context.weights
        self._random = random.Random(context.seed)
        self._sessions = Sessions()
        self._driver: Driver | None = None
        self._loads: AdapterTransfer | WeightTransfer | None = None
        self._asleep = False
        self._max_length = 0
        self._probe: list[int] = []
        self._exact = True
        self.verified: float | None = None
        """How far the log-probabilities were apart when they were last compared."""

    async def start(self) -> None:
        """Load the trainer's weights into vLLM, and compare. Raises EngineError, ConfigError without vLLM."""
        if self._driver is not None:
            raise EngineError("the engine is started already")
        driver = Driver(self._build, self._take_down)
        try:
            await driver.start()
            self._driver = driver
            await self._verify("after its start")
        except BaseException:
            self._driver = None
            await driver.stop()
            raise

    def _build(self) -> Any:
        weights, tokenizer = self._weights, self._context.tokenizer
        known = len(tokenizer) if tokenizer is not None else None
        adapter = AdapterTransfer(weights, self._context.run_dir) if self.options.lora == "adapter" else None
        engine = None
        try:
            folder = (weights.path() if adapter is None else adapter.write_base(weights.module(), tokenizer)).absolute()
            engine = build.build(
                self.options,
                model=str(folder),
                dtype=self._context.dtype,
                known_ids=known,
                device=self._context.device,
                lora=adapter.arguments() if adapter is not None else None,
            )
            self._loads = adapter or WeightTransfer(weights, folder, in_process=build.in_process(engine))
            if adapter is not None:
                self._load(engine, weights, weights.version)
        except BaseException:
            if adapter is not None:
                adapter.close()
            if engine is not None:
                build.take_down(engine)
            raise
        engine.set_weight_version(str(weights.version))
        config = engine.vllm_config.model_config
        self._max_length = int(config.max_model_len)
        self._exact = "float32" in str(config.dtype)
        vocabulary = int(config.get_vocab_size())
        from toolrl_plugin_torch.probe import probe_ids

        self._probe = probe_ids(tokenizer, min(known or vocabulary, vocabulary), self._max_length - 1)
        return engine

    def _take_down(self, engine: Any) -> None:
        if self._loads is not None:
            self._loads.close()
        build.take_down(engine)

    async def generate(
        self, prompt: Sequence[int], sampling: Sampling, *, session: str, media: Sequence[MediaInput] = ()
    ) -> Generation:
        """Sample after `prompt`. One generation a session at a time. Raises EngineError."""
        driver, ids = self._started(), requests.plain_ids(prompt)
        problem = "this engine serves no images" if media else requests.problem(ids, sampling, self._max_length)
        if problem is not None:
            raise EngineError(problem, where=f"session {session!r}")
        self._sessions.check_free(session)
        if self._asleep:
            raise EngineError("vLLM sleeps until its weights are updated", where=f"session {session!r}")
        seed = sampling.seed if sampling.seed is not None else self._random.getrandbits(63)
        arguments = requests.sampling_arguments(sampling, seed)
        output = await self._sessions.run(session, self._request(driver, ids, arguments))
        return requests.generation(output.outputs[0], output.num_cached_tokens)

    async def close(self, session: str) -> None:
        """Forget a session; what it still generates fails. Its cache is vLLM's, which drops what is unused longest."""
        self._sessions.close(session)

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Sample from these weights from now on. Requests that are half done go on with them, computed anew. Raises
        EngineError where vLLM doesn't compute what the trainer does."""
        driver = self._started()
        self._weights = weights
        await driver.call(lambda: self._load(driver.engine, weights, version))
        await self._verify(f"after the update to version {version}")

    def _load(self, engine: Any, weights: WeightSource, version: int) -> None:
        assert self._loads is not None
        try:
            if self._asleep:
                engine.wake_up(["weights"])
            self._loads.load(engine, weights)
            if self._asleep:
                # Not sooner: the memory for whatever the load needs besides is taken from the cache's.
                engine.wake_up(["kv_cache"])
                self._asleep = False
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
        driver = self._started()
        self._asleep = True
        await driver.call(lambda: driver.engine.sleep(self.options.sleep_level, mode="keep"))

    async def _verify(self, when: str) -> None:
        """Compare a fixed text's log-probabilities with the trainer's. Raises EngineError where they differ."""
        if not self.options.verify_weights:
            return
        from toolrl_plugin_torch.probe import check_logprobs

        ids, module = self._probe, self._weights.module()
        assert self._loads is not None
        await asyncio.to_thread(self._loads.check, self._weights, f"{when} vLLM")
        arguments = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0, "detokenize": False, "ignore_eos": True}
        # Also while the engine is held, which is when weights are updated.
        output = await self._request(self._started(), ids, arguments, urgent=True)
        found = requests.prompt_logprobs(output, ids)
        self.verified = await asyncio.to_thread(
            check_logprobs,
            found,
            module,
            ids,
            exact=self._exact,
            tolerance=self.options.tolerance,
            owner=f"{when} vLLM",
            hint=requests.MISMATCH,
        )

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """While this is held no step is taken, but for those that an update's check needs. Requests wait, and go on
        afterwards. Holds may be nested."""
        async with self._started().hold():
            yield

    async def stop(self) -> None:
        """End the thread and free what vLLM holds. What is under way fails. Also fine when never started."""
        if self._driver is not None:
            await self._driver.stop()

    async def _request(self, driver: Driver, ids: list[int], arguments: dict[str, Any], *, urgent: bool = False) -> Any:
        adapter = self._loads.request if self._loads is not None else None
        return await driver.request(ids, lambda: _parameters(arguments), adapter=adapter, urgent=urgent)

    def _started(self) -> Driver:
        if self._driver is None:
            raise EngineError("the engine is not started", hint="Await start() first.")
        return self._driver


def _parameters(arguments: dict[str, Any]) -> Any:
    from vllm import SamplingParams

    return SamplingParams(**arguments)
