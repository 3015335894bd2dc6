"""Between toolrl's sampling and vLLM's: plain data on both sides, so that nothing here needs vLLM."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from toolrl.errors import EngineError
from toolrl.types import Generation, Sampling
from toolrl_plugin_vllm import answers


def sampling_arguments(sampling: Sampling, seed: int | None) -> dict[str, Any]:
    """Keyword arguments of vLLM's `SamplingParams`. vLLM samples a request with a seed by itself, apart from its
    batch."""
    stop = [text for text in sampling.stop if text]
    return {
        "max_tokens": sampling.max_new_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
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


def new_seed() -> int:
    """For the sampler of an engine, whose requests have no seeds of their own."""
    return random.SystemRandom().getrandbits(62)


def generation(output: Any, cached: int | None) -> Generation:
    """The sample in vLLM's finished `CompletionOutput`. Raises EngineError where it holds none."""
    ids = output.token_ids
    return answers.generation(
        ids,
        # The sampled token is one of its entry.
        [entry[token].logprob for token, entry in zip(ids, output.logprobs or (), strict=False)],
        output.finish_reason,
        output.stop_reason,
        versions(output.weight_versions, len(ids)),
        cached=cached,
        server="vLLM",
    )


def versions(spans: Sequence[Any] | None, count: int) -> tuple[int, ...]:
    """The weight version of each of `count` tokens, from vLLM's spans of them."""
    found = [int(span.version) for span in spans or () for _ in range(span.start, min(span.end, count))]
    if len(found) != count:
        raise EngineError(f"vLLM gave the weight version of {len(found)} of {count} tokens")
    return tuple(found)
