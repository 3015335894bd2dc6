"""The dialect `sglang`: SGLang's own interface `/generate`, what is sent and what is read from the answer.

Written after SGLang's documentation (its pages on sampling parameters, on the native API and on RL systems). By default
its log-probabilities are those of softmax(logits / temperature) before truncation, as toolrl means them.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any

from pydantic import AliasPath, BaseModel, Field, FiniteFloat, StrictInt, StrictStr

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import answers
from toolrl_plugin_vllm.client import Client

PATH = "/generate"


class SglangDialect:
    """SGLang's server; the methods are those of `VllmDialect`."""

    name, model = "SGLang", ""

    def __init__(self, client: Client, tokenizer: Any) -> None:
        self._client, self._tokenizer = client, tokenizer
        self._given: str | None = None
        """The name of the weights that it was given last."""

    async def set_up(self, known_ids: int | None) -> None:
        """Nothing."""

    async def sample(self, prompt: Sequence[int], sampling: Sampling, seed: int, version: int) -> Generation:
        found = generation(await self._client.ask(PATH, body(prompt, sampling, seed)), version, self._given)
        return cut_at_stop(found, sampling.stop, self._decode) if sampling.stop and self._tokenizer else found

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    async def prompt_logprobs(self, ids: Sequence[int]) -> list[float]:
        return prompt_logprobs(await self._client.ask(PATH, probe_body(ids)), ids)

    async def load(self, folder: str, version: int) -> None:
        self._given = str(version)
        asked = {"model_path": folder, "weight_version": self._given, "flush_cache": True}
        answer = await self._client.ask("/update_weights_from_disk", asked)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            said = answer.get("message") if isinstance(answer, dict) else answer
            raise EngineError(f"{self._client.url}: SGLang doesn't take the weights of {folder!r}: {said}")


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
    weights that the server was given last."""
    said = _read(answer)
    if None not in (said.weights, weights) and said.weights != weights:
        raise EngineError(
            f"SGLang samples from weights that it calls {said.weights!r}, and was given {weights!r} last",
            hint="It was restarted, or another server answers at this address.",
        )
    ids, logprobs = [token for _, token, _ in said.sampled], [value for value, _, _ in said.sampled]
    if said.ids and said.ids != ids:
        raise EngineError(f"SGLang gave {len(said.ids)} output_ids and log-probabilities of {len(ids)} other tokens")
    if said.error or (said.status or 0) >= 400:
        raise EngineError(f"SGLang refuses a request: {said.refused}")
    return answers.generation(
        ids, logprobs, said.finish, said.stopped_by, [version], cached=said.cached, server="SGLang"
    )


def cut_at_stop(found: Generation, stops: Sequence[str], decode: Callable[[Sequence[int]], str]) -> Generation:
    """The generation up to the token that completes the first of `stops`; as it is where none is in its text. SGLang
    looks for a stop string in as many of the last tokens as the tokenizer would make of it, and a model may spell it
    with more."""
    text = decode(found.ids)
    wanted = [stop for stop in stops if stop and stop in text]
    if not wanted:
        return found
    lengths = range(1, len(found.ids))
    few = 1 + bisect_left(lengths, True, key=lambda length: any(stop in decode(found.ids[:length]) for stop in wanted))
    if few == len(found.ids) and found.finish == "stop":
        return found
    text = decode(found.ids[:few])
    stop = min((stop for stop in wanted if stop in text), key=lambda stop: text.find(stop) + len(stop))
    parts = {"ids": found.ids[:few], "logprobs": found.logprobs[:few], "versions": found.versions[:few]}
    return dataclasses.replace(found, **parts, finish="stop", stopped_by=stop)


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
