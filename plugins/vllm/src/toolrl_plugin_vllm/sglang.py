"""The dialect `sglang`: SGLang's own interface `/generate`, what is sent and what is read from the answer.

Written after SGLang's documentation (its pages on sampling parameters, on the native API and on RL systems). By default
its log-probabilities are those of softmax(logits / temperature) before truncation, as toolrl means them; a server whose
SGLANG_RETURN_ORIGINAL_LOGPROB is set gives those before the temperature.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import AliasPath, BaseModel, Field, FiniteFloat, StrictInt, StrictStr

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import answers
from toolrl_plugin_vllm.client import Client
from toolrl_plugin_vllm.completions import Logprobs, problem
from toolrl_plugin_vllm.options import OpenaiEngineOptions

PATH = "/generate"
_FLUSHES, _BETWEEN = 50, 0.2
"""How often an SGLang server is asked to empty its cache, and the seconds between: it refuses until the last request,
answered already, has left its books."""


class SglangDialect:
    """SGLang's server; the methods are those of `VllmDialect`."""

    name = "SGLang"
    checks_stops = False
    """It looks for a stop string in the text of a few of the last tokens: as many as the tokenizer would make of it,
    and a model may spell it with more."""

    def __init__(self, client: Client, options: OpenaiEngineOptions) -> None:
        self._client = client
        self._logprobs: Logprobs = options.server_logprobs or "exact"
        self._given: str | None = None
        """The name of the weights that it was given last."""

    def problem(self, sampling: Sampling) -> str | None:
        return problem(sampling, self._logprobs)

    async def set_up(self, known_ids: int | None) -> None:
        """Nothing."""

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seed: int, version: int) -> Generation:
        return generation(await self._client.ask(PATH, body(prompt, sampling, seed)), version, self._given)

    async def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        return prompt_logprobs(await self._client.ask(PATH, probe_body(ids)), ids)

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


def body(prompt: Sequence[int], sampling: Sampling, seed: int) -> dict[str, Any]:
    """A request for one sample."""
    settings: dict[str, Any] = {
        "max_new_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "no_stop_trim": True,
        # With it SGLang passes over stop_token_ids, too.
        "ignore_eos": not sampling.stop_token_ids,
    }
    stop = [text for text in sampling.stop if text]
    if stop:
        settings["stop"] = stop
    if sampling.stop_token_ids:
        settings["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.temperature > 0:
        settings["sampling_seed"] = seed & 0x7FFFFFFF
    return {"input_ids": list(prompt), "sampling_params": settings, "return_logprob": True}


def probe_body(ids: Sequence[int]) -> dict[str, Any]:
    """A request for the log-probabilities of a text."""
    return {
        "input_ids": list(ids),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0.0},
        "return_logprob": True,
        "logprob_start_len": 0,
    }


def generation(answer: Any, version: int, weights: str | None = None) -> Generation:
    """The sample in an answer. Raises EngineError for an answer that holds none, and for one that names others than the
    weights that the server was given under this name; servers that name none are believed."""
    said = _read(answer)
    if said.weights is not None and weights is not None and said.weights != weights:
        raise EngineError(
            f"SGLang samples from weights that it calls {said.weights!r}, and was given {weights!r} last",
            hint="It was started anew, or another one answers at this address: one server must serve this run, alone.",
        )
    ids, logprobs = [token for _, token, _ in said.sampled], [value for value, _, _ in said.sampled]
    if said.ids and said.ids != ids:
        raise EngineError(f"SGLang gave {len(said.ids)} output_ids and log-probabilities of {len(ids)} other tokens")
    if said.error or (said.status or 0) >= 400:
        raise EngineError(f"SGLang refuses a request: {said.refused}")
    return answers.generation(
        ids, logprobs, said.finish, said.stopped_by, [version], cached=said.cached, server="SGLang"
    )


def prompt_logprobs(answer: Any, ids: Sequence[int]) -> list[float]:
    """Those of every token of the probe but the first. Raises EngineError for an answer without them."""
    entries = _read(answer).prompt
    if entries is None or len(entries) != len(ids):
        raise EngineError(
            "SGLang gives no log-probabilities of a prompt: its weights can't be verified, and it can't teach",
            hint="Set engine.options.verify_weights to false for a server that can't.",
        )
    found = [value for value, _, _ in entries[1:] if value is not None]
    if len(found) + 1 != len(ids) or [token for _, token, _ in entries[1:]] != list(ids[1:]):
        raise EngineError("SGLang gave the log-probabilities of another prompt than it was asked for")
    return found


def _read(answer: Any) -> _Answer:
    return answers.read(_Answer, answer, "SGLang", "It must take `return_logprob: true`.")


class _Answer(BaseModel):
    ids: list[int] | None = Field(None, validation_alias="output_ids")
    sampled: list[tuple[FiniteFloat, StrictInt, Any]] = Field(
        validation_alias=AliasPath("meta_info", "output_token_logprobs")
    )
    prompt: list[tuple[FiniteFloat | None, StrictInt, Any]] | None = Field(
        None, validation_alias=AliasPath("meta_info", "input_token_logprobs")
    )
    finish: str | None = Field(None, validation_alias=AliasPath("meta_info", "finish_reason", "type"))
    stopped_by: StrictStr | StrictInt | None = Field(
        None, validation_alias=AliasPath("meta_info", "finish_reason", "matched")
    )
    refused: str | None = Field(None, validation_alias=AliasPath("meta_info", "finish_reason", "message"))
    error: Any = Field(None, validation_alias=AliasPath("meta_info", "finish_reason", "err_type"))
    status: int | None = Field(None, validation_alias=AliasPath("meta_info", "finish_reason", "status_code"))
    cached: int | None = Field(None, validation_alias=AliasPath("meta_info", "cached_tokens"))
    weights: str | None = Field(None, validation_alias=AliasPath("meta_info", "weight_version"))
