"""The engine `openai`: a server that takes token ids and gives them back, such as vLLM's or SGLang's
(`completions.py`, `sglang.py`).

Weights are handed over by a folder that both can read: at the start and at each update the engine writes the trainer's
weights there, waits until nothing is under way, makes the server load them, empties its prefix cache, and compares
the log-probabilities of a fixed text with the trainer's. New requests wait meanwhile: nothing samples while weights
change, so that every token's version is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from toolrl.errors import EngineError
from toolrl.protocols import BuildContext, WeightSource
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import answers
from toolrl_plugin_vllm.client import Client
from toolrl_plugin_vllm.completions import VllmDialect
from toolrl_plugin_vllm.options import OpenaiEngineOptions
from toolrl_plugin_vllm.sglang import SglangDialect
from toolrl_plugin_vllm.token_engine import TokenEngine


class OpenaiEngine(TokenEngine):
    """A `RolloutEngine`. Its coroutines belong to one event loop."""

    def __init__(self, options: OpenaiEngineOptions | None, context: BuildContext) -> None:
        assert options is not None, "url is required"
        super().__init__(context, context.weights, options.tolerance)
        self.options = options
        self._version = context.weights.version if context.weights is not None else 0
        # Data-parallel engines of a server without the extension may all draw the same numbers.
        self.seeded = context.deterministic or not options.worker_extension
        self._client = Client(options.url, api_key=options.api_key, timeout_seconds=options.timeout_seconds)
        self._dialect: VllmDialect | SglangDialect = (
            SglangDialect(self._client, context.tokenizer)
            if options.dialect == "sglang"
            else VllmDialect(self._client, options)
        )
        self._known_ids: int | None = None
        """Of the model that is trained, the rows of its embedding."""
        self._open = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._under_way = 0

    async def start(self) -> None:
        """Find the server's model, hand it the trainer's weights, and compare. Raises EngineError."""
        self._client.open()
        try:
            self._dialect.model = await self._find_model()
            tokenizer = self._context.tokenizer
            await self._dialect.set_up(len(tokenizer) if tokenizer is not None else None)
            module = self._weights.module(data=False) if self._weights is not None else None
            if module is not None:
                self._known_ids = int(module.config.get_text_config().vocab_size)
            if self._weights is not None and self.options.update_weights:
                await self._load(self._weights, self._version)
            await self._verify("at its start")
        except BaseException:
            await self._client.close()
            raise
        self._started = True
        self._open.set()

    def _problem(self, prompt: Sequence[int], sampling: Sampling) -> str | None:
        if self.options.dialect == "vllm" and not self.options.worker_extension and sampling.temperature not in (0, 1):
            return (
                f"the server's log-probabilities are those before the temperature, and it is {sampling.temperature:g}"
            )
        return super()._problem(prompt, sampling)

    async def _sample(self, ids: list[int], sampling: Sampling, seed: int | None) -> Generation:
        async with self._taking_part():
            found = await self._dialect.sample(ids, sampling, seed, self._version)
        answers.check(found, sampling, self._known_ids, self._dialect.name)
        return found

    async def update_weights(self, weights: WeightSource, version: int) -> None:
        """Sample from these weights from now on, when what is under way has ended. Raises EngineError."""
        if not self.options.update_weights:
            raise EngineError(
                "the server's weights can't be updated: engine.options.update_weights is false",
                hint="Only evaluation and rollout work with a server whose weights stay as they are.",
            )
        self._check_started()
        async with self._alone():
            await self._load(weights, version)
            self._version = version
            await self._verify(f"after the update to version {version}")

    async def stop(self) -> None:
        """Close the connections. What is under way fails; the server goes on."""
        await self._close_all()
        self._started = False
        await self._client.close()

    # The server.

    async def _find_model(self) -> str:
        answer = await self._client.ask("/v1/models")
        found = answer.get("data") if isinstance(answer, dict) else None
        models = {str(entry.get("id")): entry for entry in found or () if isinstance(entry, dict)}
        wanted = self.options.model
        if not wanted and len(models) == 1:
            wanted = next(iter(models))
        if wanted not in models:
            names = ", ".join(sorted(models)) or "none"
            asked = f"there is no model {wanted!r}" if wanted else "there isn't one model only"
            raise EngineError(f"{self._client.url}: {asked}; it serves {names}", hint="Set engine.options.model.")
        length = models[wanted].get("max_model_len")
        self._max_length = length if isinstance(length, int) else self._max_length
        return wanted

    async def _load(self, weights: WeightSource, version: int) -> None:
        self._weights = weights  # kept: its folder goes with it
        folder = str((await asyncio.to_thread(weights.path)).resolve())
        await self._dialect.load(folder, version)

    async def _verify(self, when: str) -> None:
        if not self.options.verify_weights or self._weights is None:
            return
        await self._compare(f"{when} {self._dialect.name}")

    async def _prompt_logprobs(self, ids: list[int]) -> list[float]:
        return await self._dialect.prompt_logprobs(ids)

    async def tokenize(self, text: str) -> list[int] | None:
        """See ScoresTokens."""
        asked = {"prompt": text, "add_special_tokens": False}
        try:
            answer = await self._client.ask("/tokenize", asked | {"model": self._dialect.model})
        except EngineError:
            return None
        found = answer.get("tokens") if isinstance(answer, dict) else None
        return found if isinstance(found, list) else None

    # Requests and updates never overlap.

    @asynccontextmanager
    async def _taking_part(self) -> AsyncIterator[None]:
        while not self._open.is_set():
            await self._open.wait()
        self._under_way += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        self._open.clear()
        try:
            while self._under_way:
                await self._idle.wait()
            yield
        finally:
            self._open.set()
