"""The dialect `sglang`: SGLang's own interface `/generate`, what is sent and what is read from the answer.

Written after SGLang's documentation (its pages on sampling parameters, on the native API and on RL systems). By default
its log-probabilities are those of softmax(logits / temperature) before truncation, as toolrl means them; a server whose
SGLANG_RETURN_ORIGINAL_LOGPROB is set gives those before the temperature.
"""

from __future__ import annotations

import asyncio
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm.answers import at_most_zero
from toolrl_plugin_vllm.client import Client
from toolrl_plugin_vllm.completions import Logprobs, problem
from toolrl_plugin_vllm.options import OpenaiEngineOptions

PATH = "/generate"
_LOGPROBS = "its answer holds no log-probability for each token"
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
        answer = await self._client.ask(PATH, body(prompt, sampling, seed))
        if self._given is not None:
            check_weights(answer, self._given)
        return generation(answer, version)

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


def generation(answer: Any, version: int) -> Generation:
    """The sample in an answer. Raises EngineError for an answer that holds none."""
    info = _meta_info(answer)
    entries = info.get("output_token_logprobs")
    if not isinstance(entries, list):
        raise EngineError(f"SGLang: {_LOGPROBS}", hint="It must take `return_logprob: true`.")
    ids, logprobs = _pairs(entries)
    said = answer.get("output_ids")
    if isinstance(said, list) and said and tuple(said) != ids:
        raise EngineError(f"SGLang gave {len(said)} output_ids and log-probabilities of {len(ids)} other tokens")
    finish, stopped_by = _finish(info.get("finish_reason"), ids)
    cached = info.get("cached_tokens")
    return Generation(
        ids,
        at_most_zero(logprobs, "SGLang"),
        finish,
        stopped_by,
        versions=(version,) * len(ids),
        cached=cached if isinstance(cached, int) else 0,
    )


def check_weights(answer: Any, version: str) -> None:
    """Raise EngineError where an answer says that it comes from others than the weights that the server was given under
    this name. Servers that don't say are believed."""
    said = _meta_info(answer).get("weight_version")
    if said is not None and said != version:
        raise EngineError(
            f"SGLang samples from weights that it calls {said!r}, and was given {version!r} last",
            hint="It was started anew, or another one answers at this address: one server must serve this run, alone.",
        )


def prompt_logprobs(answer: Any, ids: Sequence[int]) -> list[float]:
    """Those of every token of the probe but the first. Raises EngineError for an answer without them."""
    entries = _meta_info(answer).get("input_token_logprobs")
    if not isinstance(entries, list) or len(entries) != len(ids):
        raise EngineError(
            "SGLang gives no log-probabilities of a prompt, so its weights can't be verified",
            hint="Set engine.options.verify_weights to false for a server that can't.",
        )
    found, logprobs = _pairs(entries[1:])
    if found != tuple(ids[1:]):
        raise EngineError("SGLang gave the log-probabilities of another prompt than it was asked for")
    return list(logprobs)


def _meta_info(answer: Any) -> Mapping[str, Any]:
    info = answer.get("meta_info") if isinstance(answer, Mapping) else None
    if not isinstance(info, Mapping):
        raise EngineError(f"SGLang's answer holds no meta_info: {answer!r:.300}")
    return info


def _pairs(entries: Sequence[Any]) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Ids and log-probabilities of entries [log-probability, id, text]."""
    try:
        pairs = [(operator.index(entry[1]), float(entry[0])) for entry in entries]
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise EngineError(f"SGLang: {_LOGPROBS}: {error!r}") from error
    if not all(math.isfinite(value) for _, value in pairs):
        raise EngineError(f"SGLang: {_LOGPROBS}: one is no number, or not a finite one")
    return tuple(token for token, _ in pairs), tuple(value for _, value in pairs)


def _finish(reason: Any, ids: Sequence[int]) -> tuple[Any, str | int | None]:
    kind = reason.get("type") if isinstance(reason, Mapping) else None
    if kind == "length":
        return "length", None
    if kind == "stop":
        matched = reason.get("matched")
        if matched is None and ids:
            matched = ids[-1]
        if not isinstance(matched, str | int):
            raise EngineError(f"SGLang reports that {matched!r} ended a generation")
        return "stop", matched
    if kind == "abort":
        if reason.get("err_type") or (reason.get("status_code") or 0) >= 400:
            raise EngineError(f"SGLang refuses a request: {reason.get('message')}")
        return "abort", None
    raise EngineError(f"SGLang ended a generation with {reason!r}")
