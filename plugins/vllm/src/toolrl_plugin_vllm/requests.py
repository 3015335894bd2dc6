"""Between toolrl's sampling and vLLM's: plain data on both sides, so that nothing here needs vLLM."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm.answers import at_most_zero

COLDEST = 0.01
"""Lower temperatures than this, but for 0, vLLM raises to it in silence."""
MISMATCH = (
    "Train with `engine: transformers`, or raise engine.options.tolerance where the difference is rounding: compare it "
    "with logprob_mismatch/max of earlier steps."
)
"""What to do where the weights seem to differ."""


def sampling_arguments(sampling: Sampling, seed: int) -> dict[str, Any]:
    """Keyword arguments of vLLM's `SamplingParams`."""
    stop = [text for text in sampling.stop if text]
    return {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        # A greedy sample draws nothing, and vLLM keeps a generator for each seed.
        "seed": seed if sampling.temperature > 0 else None,
        "stop": stop or None,
        "stop_token_ids": list(sampling.stop_token_ids) or None,
        "include_stop_str_in_output": True,
        "detokenize": bool(stop),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        # The chat format names the ids that end a turn; vLLM would add those of the model's generation_config.json.
        "ignore_eos": True,
        "logprobs": 0,
    }


def problem(prompt: Sequence[int], sampling: Sampling, max_length: int) -> str | None:
    """Why a request can't be served, or None."""
    if not prompt:
        return "the prompt is empty"
    if sampling.max_new_tokens < 1:
        return f"max_new_tokens is {sampling.max_new_tokens}, expected 1 or more"
    if not 0 <= sampling.temperature < float("inf"):
        return f"temperature is {sampling.temperature}, expected 0 or more"
    if 0 < sampling.temperature < COLDEST:
        return f"temperature is {sampling.temperature}; vLLM samples at {COLDEST} or more, or at 0"
    total = len(prompt) + sampling.max_new_tokens
    if total > max_length:
        return (
            f"a prompt of {len(prompt)} tokens and max_new_tokens {sampling.max_new_tokens} are {total}, more than the "
            f"{max_length} that an episode may have"
        )
    return None


def plain_ids(prompt: Sequence[int]) -> list[int]:
    """The prompt as Python integers. Raises EngineError for what is no integer."""
    try:
        return [operator.index(token) for token in prompt]
    except TypeError as error:
        raise EngineError(f"a prompt holds something that is no token id: {error}") from error


def generation(output: Any, cached: int | None) -> Generation:
    """What vLLM's finished `CompletionOutput` says. Raises EngineError where it ended in a way that has no meaning
    here."""
    ids = tuple(output.token_ids)
    logprobs = at_most_zero(
        (entry[token].logprob for token, entry in zip(ids, output.logprobs or (), strict=False)), "vLLM"
    )
    if len(logprobs) != len(ids):
        raise EngineError(f"vLLM gave {len(ids)} tokens and {len(logprobs)} log-probabilities")
    finish, stopped_by = output.finish_reason, None
    if finish == "stop":
        stopped_by = output.stop_reason if output.stop_reason is not None else ids[-1]
    elif finish not in ("length", "abort"):
        raise EngineError(f"vLLM ended a generation with {finish!r}")
    return Generation(
        ids, logprobs, finish, stopped_by, versions=versions(output.weight_versions, len(ids)), cached=cached or 0
    )


def prompt_logprobs(output: Any, ids: Sequence[int]) -> list[float]:
    """Those of every token but the first, from vLLM's `RequestOutput`."""
    return [float(entry[token].logprob) for token, entry in zip(ids[1:], output.prompt_logprobs[1:], strict=True)]


def versions(spans: Sequence[Any] | None, count: int) -> tuple[int, ...]:
    """The weight version of each of `count` tokens, from vLLM's spans of them."""
    found: list[int] = []
    for span in spans or ():
        found += [int(span.version)] * (min(span.end, count) - len(found))
    if len(found) != count:
        raise EngineError(f"vLLM gave the weight version of {len(found)} of {count} tokens")
    return tuple(found)
