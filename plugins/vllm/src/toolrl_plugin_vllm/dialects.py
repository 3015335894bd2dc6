"""What the engine `openai` says to a server of each kind, and how it reads the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import completions, sglang
from toolrl_plugin_vllm.client import Client
from toolrl_plugin_vllm.options import OpenaiEngineOptions

_FLUSHES, _BETWEEN = 50, 0.2
"""How often an SGLang server is asked to empty its cache, and the seconds between: it refuses until the last request,
answered already, has left its books."""


class Dialect(Protocol):
    """A kind of server. Every method raises EngineError."""

    name: str
    """Of the server, for messages."""
    checks_stops: bool
    """Whether its stop strings are what toolrl means, so that nobody need look for them again."""

    def problem(self, sampling: Sampling) -> str | None:
        """Why what the server would answer isn't what toolrl means, or None."""
        ...

    async def set_up(self, known_ids: int | None) -> None:
        """Once, before anything is sampled. `known_ids` is the size of the tokenizer."""
        ...

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seed: int, version: int) -> Generation:
        """One sample. Finish `abort` where it was interrupted; it then has the tokens up to there."""
        ...

    async def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        """Of each token but the first."""
        ...

    async def load(self, folder: str, version: int) -> None:
        """Take the weights of a folder and forget what was cached. Nothing is under way meanwhile."""
        ...

    async def interrupt(self) -> None:
        """End all that is under way there."""
        ...


class VllmDialect:
    """vLLM's server, and others with its completions API."""

    name = "vLLM"
    checks_stops = True

    def __init__(self, client: Client, model: str, options: OpenaiEngineOptions) -> None:
        self._client, self._model, self._extension = client, model, options.worker_extension
        self._logprobs: completions.Logprobs = (
            "exact" if options.worker_extension else "processed" if options.server_logprobs == "processed" else "raw"
        )

    def problem(self, sampling: Sampling) -> str | None:
        return completions.problem(sampling, self._logprobs)

    async def set_up(self, known_ids: int | None) -> None:
        if self._extension:
            await self._call("toolrl_setup", known_ids)

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seed: int, version: int) -> Generation:
        answer = await self._client.ask(completions.PATH, completions.body(self._model, prompt, sampling, seed))
        return completions.generation(answer, version)

    async def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        answer = await self._client.ask(completions.PATH, completions.probe_body(self._model, ids))
        return completions.prompt_logprobs(answer, ids)

    async def load(self, folder: str, version: int) -> None:
        if self._extension:
            await self._call("toolrl_load_folder", folder)
        else:
            await self._client.ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        answer = await self._client.ask("/reset_prefix_cache", {})
        if isinstance(answer, dict) and answer.get("success") is False:
            raise EngineError(
                f"{self._client.url}: the prefix cache of the old weights can't be emptied",
                hint="Something else uses the server; it must serve this run alone.",
            )

    async def interrupt(self) -> None:
        try:
            await self._client.ask("/abort_requests", {})
        except EngineError as error:
            error.hint = "Start the server with VLLM_SERVER_DEV_MODE=1, or set engine.options.on_update to wait."
            raise

    async def _call(self, method: str, *args: Any) -> None:
        """Call a method of the server's workers."""
        try:
            await self._client.ask("/collective_rpc", {"method": method, "args": list(args)})
        except EngineError as error:
            error.hint = (
                "Start the server with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls "
                "toolrl_plugin_vllm.extension.WorkerExtension, as docs/howto/vllm.md shows; its log says more."
            )
            raise


class SglangDialect:
    """SGLang's server."""

    name = "SGLang"
    checks_stops = False
    """It looks for a stop string in the text of a few of the last tokens: as many as the tokenizer would make of it,
    and a model may spell it with more."""

    def __init__(self, client: Client, model: str, options: OpenaiEngineOptions) -> None:
        self._client = client
        self._logprobs: completions.Logprobs = options.server_logprobs or "exact"
        self._given: str | None = None
        """The name of the weights that it was given last."""

    def problem(self, sampling: Sampling) -> str | None:
        return completions.problem(sampling, self._logprobs)

    async def set_up(self, known_ids: int | None) -> None:
        """Nothing."""

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seed: int, version: int) -> Generation:
        answer = await self._client.ask(sglang.PATH, sglang.body(prompt, sampling, seed))
        if self._given is not None:
            sglang.check_weights(answer, self._given)
        return sglang.generation(answer, version)

    async def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        return sglang.prompt_logprobs(await self._client.ask(sglang.PATH, sglang.probe_body(ids)), ids)

    async def load(self, folder: str, version: int) -> None:
        self._given = str(version)
        answer = await self._client.ask(
            "/update_weights_from_disk", {"model_path": folder, "weight_version": self._given, "flush_cache": True}
        )
        if not isinstance(answer, dict) or answer.get("success") is not True:
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise EngineError(f"{self._client.url}: SGLang doesn't take the weights of {folder!r}: {said}")
        await self._flush()

    async def _flush(self) -> None:
        for left in reversed(range(_FLUSHES)):
            try:
                await self._client.ask("/flush_cache", {}, plain=True)
            except EngineError as error:
                if left and "answered 400" in error.message:
                    await asyncio.sleep(_BETWEEN)
                    continue
                error.hint = "Something else uses the server; it must serve this run alone."
                raise
            return

    async def interrupt(self) -> None:
        await self._client.ask("/abort_request", {"rid": "", "abort_all": True}, plain=True)
