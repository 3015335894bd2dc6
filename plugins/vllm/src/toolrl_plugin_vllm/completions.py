"""The dialect `vllm`: the completions API with token ids, what is sent and what is read from the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import AliasPath, BaseModel, Field, FiniteFloat, StrictInt, StrictStr

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import answers, requests
from toolrl_plugin_vllm.client import Client
from toolrl_plugin_vllm.options import OpenaiEngineOptions
from toolrl_plugin_vllm.requests import new_seed

PATH = "/v1/completions"
SERVER = "the server"
_IDS = "It must take `return_token_ids: true` and `logprobs: 0`, as vLLM's does."


class VllmDialect:
    """vLLM's server, and others with its completions API. Every method raises EngineError."""

    name = "vLLM"
    """Of the server, for messages."""

    model = ""
    """Its name there."""

    def __init__(self, client: Client, options: OpenaiEngineOptions) -> None:
        self._client, self._extension = client, options.worker_extension

    async def set_up(self, known_ids: int | None) -> None:
        """Once, before anything is sampled. `known_ids` is the size of the tokenizer."""
        if self._extension:
            await self._call("toolrl_setup", known_ids, new_seed())

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seed: int | None, version: int) -> Generation:
        """One sample."""
        answer = await self._client.ask(PATH, body(self.model, prompt, sampling, seed))
        return generation(answer, version)

    async def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        """Of each token but the first."""
        answer = await self._client.ask(PATH, probe_body(self.model, ids))
        return prompt_logprobs(answer, ids)

    async def load(self, folder: str, version: int) -> None:
        """Take the weights of a folder and forget what was cached. Nothing is under way meanwhile."""
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


def body(model: str, prompt: Sequence[int], sampling: Sampling, seed: int | None) -> dict[str, Any]:
    """A request for one sample."""
    arguments = requests.sampling_arguments(sampling, seed)
    del arguments["detokenize"]
    arguments["min_p"] = arguments["min_p"] or None  # Left out where it is 0: not every server knows it.
    sent = {"model": model, "prompt": list(prompt), **arguments, "return_token_ids": True}
    return {name: value for name, value in sent.items() if value is not None}


def probe_body(model: str, ids: Sequence[int]) -> dict[str, Any]:
    """A request for the log-probabilities of a text."""
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": 1,
        "temperature": 0.0,
        "prompt_logprobs": 0,
        "return_token_ids": True,
    }


def generation(answer: Any, version: int) -> Generation:
    """The sample in an answer. Raises EngineError for an answer that holds none."""
    said = answers.read(_Completion, answer, SERVER, _IDS)
    # A request that was ended before its first token has no log-probabilities.
    return answers.generation(
        said.token_ids, said.logprobs, said.finish, said.stopped_by, [version], cached=said.cached, server=SERVER
    )


def prompt_logprobs(answer: Any, ids: Sequence[int]) -> list[float]:
    """Those of every token of the probe but the first. Raises EngineError for an answer without them."""
    entries = answers.read(_Completion, answer, SERVER, _IDS).prompt
    if entries is None or len(entries) != len(ids):
        raise EngineError(
            "the server gives no log-probabilities of a prompt: its weights can't be verified, and it can't teach",
            hint="Set engine.options.verify_weights to false for a server other than vLLM's.",
        )
    try:
        return [float((entry or {})[str(token)]["logprob"]) for token, entry in zip(ids[1:], entries[1:], strict=True)]
    except (KeyError, TypeError, ValueError) as error:
        raise EngineError(f"the server's log-probabilities of a prompt can't be read: {error!r}") from error


class _Completion(BaseModel):
    token_ids: list[StrictInt] = Field(validation_alias=AliasPath("choices", 0, "token_ids"))
    logprobs: list[FiniteFloat] = Field([], validation_alias=AliasPath("choices", 0, "logprobs", "token_logprobs"))
    finish: str | None = Field(None, validation_alias=AliasPath("choices", 0, "finish_reason"))
    stopped_by: StrictStr | StrictInt | None = Field(None, validation_alias=AliasPath("choices", 0, "stop_reason"))
    prompt: list[dict[str, Any] | None] | None = Field(
        None, validation_alias=AliasPath("choices", 0, "prompt_logprobs")
    )
    cached: int | None = Field(None, validation_alias=AliasPath("usage", "prompt_tokens_details", "cached_tokens"))
