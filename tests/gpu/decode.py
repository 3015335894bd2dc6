"""Tokens a second of the embedded engine while it decodes, against what the card's memory allows.

A decoding step reads every weight once and the keys and values of every row: with B rows of L tokens

    bytes = weights + B · L · 2 · layers · key heads · head size · bytes a number

and takes at least bytes / bandwidth seconds, with the bandwidth that a copy reached here. In groups of eight, as GRPO
samples, a prompt has to be read once a group. A step's time is the difference of two generations of different length,
through the engine's own interface; so prompts, which both have, are no part of it.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from dataclasses import dataclass
from typing import Any

from clock import Clock, Memory
from settings import Settings

GROUP = 8


@dataclass(frozen=True)
class Sizes:
    batches: tuple[int, ...]
    prompt: int
    short: int
    long: int
    rounds: int


FULL = Sizes((1, 8, 32, 64, 128, 256), 256, 8, 72, 3)
DRY = Sizes((2, 8), 40, 2, 8, 1)


def run(settings: Settings) -> dict[str, Any]:
    import torch

    from toolrl.errors import EngineError
    from toolrl_plugin_torch.options import ModelConfig
    from toolrl_plugin_torch.policy import load_policy

    sizes = DRY if settings.dry else FULL
    device = torch.device(settings.device)
    policy = load_policy(ModelConfig(path=settings.model), settings.model, device)
    rows = []
    for shared in (False, True):
        for batch in sizes.batches:
            row = {"batch": batch, "shared": shared}
            try:
                row |= _measure(policy, batch, sizes, shared=shared, settings=settings)
            except (torch.OutOfMemoryError, EngineError) as error:
                # The engine's thread says in its own words why it ended.
                cause = error.__cause__ if isinstance(error, EngineError) else error
                if not isinstance(cause, torch.OutOfMemoryError):
                    raise
                row["error"] = str(cause).partition(". ")[0]
            rows.append(row)
    return {
        "dtype": str(policy.dtype).removeprefix("torch."),
        "weights_bytes": weights_read(policy.model),
        "prompt": sizes.prompt,
        "rows": rows,
        "kernels": _kernels(policy, sizes, settings),
    }


def weights_read(model: Any) -> int:
    """Bytes of the weights that a decoding step reads: all but the embedding, of which it reads a row a token, unless
    the head is the same matrix."""
    embedding, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    return sum(p.numel() * p.dtype.itemsize for p in model.parameters() if p is not embedding or p is head)


def cache_bytes(model: Any) -> int:
    """Bytes of the keys and values of one token."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * size * next(iter(model.parameters())).dtype.itemsize


class Sampler:
    """The engine with random prompts."""

    def __init__(self, policy: Any, batch: int, *, shared: bool) -> None:
        from toolrl.protocols import BuildContext
        from toolrl_plugin_torch.policy import PolicyWeights
        from toolrl_plugin_transformers.engine import TransformersEngine
        from toolrl_plugin_transformers.options import TransformersEngineOptions

        options = TransformersEngineOptions(max_batch=batch, share_prefixes=shared)
        self._weights = PolicyWeights(policy, 0)
        self.engine = TransformersEngine(options, BuildContext("measure", weights=self._weights))
        self._vocabulary = policy.model.config.get_text_config().vocab_size
        self._batch = batch
        self._group = GROUP if shared else 1
        self._rounds = 0

    async def generate(self, prompt: int, new: int) -> None:
        """New prompts each time, so that nothing is cached; groups have theirs in common."""
        from toolrl.types import Sampling

        self._rounds += 1
        chance = random.Random(self._rounds)
        names = [f"{self._rounds}.{number}" for number in range(self._batch)]
        prompts = [
            [chance.randrange(self._vocabulary) for _ in range(prompt)] for _ in range(-(-self._batch // self._group))
        ]
        sampling = Sampling(new, seed=self._rounds)
        await asyncio.gather(
            *(
                self.engine.generate(prompts[number // self._group], sampling, session=name)
                for number, name in enumerate(names)
            )
        )
        for name in names:
            await self.engine.close(name)


def _measure(policy: Any, batch: int, sizes: Sizes, *, shared: bool, settings: Settings) -> dict[str, Any]:
    clock, memory = Clock(settings.device), Memory(settings.device)
    memory.reset()

    async def times() -> tuple[list[float], list[float]]:
        sampler = Sampler(policy, batch, shared=shared)
        await sampler.engine.start()
        try:
            await sampler.generate(sizes.prompt, sizes.long)
            short, long = [], []
            for _ in range(sizes.rounds):
                for new, found in ((sizes.short, short), (sizes.long, long)):
                    started = clock.now()
                    await sampler.generate(sizes.prompt, new)
                    found.append(clock.now() - started)
        finally:
            await sampler.engine.stop()
        return short, long

    short, long = asyncio.run(times())
    steps = sizes.long - sizes.short
    step = (statistics.median(long) - statistics.median(short)) / steps
    own = (sizes.short + sizes.long) / 2
    prompts = -(-batch // GROUP) if shared else batch
    read = weights_read(policy.model) + cache_bytes(policy.model) * (prompts * sizes.prompt + batch * own)
    bandwidth = settings.card.get("bandwidth")
    limit = read / bandwidth if bandwidth else None
    return {
        # On a machine that is busy with other work the longer one can take less.
        "step_seconds": step if step > 0 else None,
        "tokens_per_second": batch / step if step > 0 else None,
        "whole_tokens_per_second": batch * sizes.long / statistics.median(long),
        "bytes_read": read,
        "limit_seconds": limit,
        "of_limit": limit / step if limit and step > 0 else None,
        "peak_bytes": memory.peak(),
    }


def _kernels(policy: Any, sizes: Sizes, settings: Settings) -> dict[str, Any]:
    """How many kernels a step starts, and which share of the time the device is busy with them; where that is far below
    1 the step waits for the processor. Empty without a GPU."""
    import torch

    if not settings.device.startswith("cuda"):
        return {}
    from torch.profiler import ProfilerActivity, profile

    clock = Clock(settings.device)

    async def profiled() -> tuple[Any, float]:
        sampler = Sampler(policy, 64, shared=False)
        await sampler.engine.start()
        try:
            await sampler.generate(sizes.prompt, sizes.short)
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
                started = clock.now()
                await sampler.generate(sizes.prompt, sizes.long)
                seconds = clock.now() - started
        finally:
            await sampler.engine.stop()
        return found, seconds

    try:
        found, seconds = asyncio.run(profiled())
        kernels = [event for event in found.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    except Exception as error:  # noqa: BLE001 - a profiler that isn't allowed here takes no other figure along
        return {"error": f"{type(error).__name__}: {error}"}
    if not kernels:
        return {"error": "the profiler saw no kernels"}
    busy = sum(event.time_range.elapsed_us() for event in kernels) / 1e6
    return {"batch": 64, "each_step": len(kernels) / sizes.long, "busy": busy / seconds}


def headline(figures: dict[str, Any]) -> str:
    rows = [row for row in figures["rows"] if row.get("tokens_per_second")]
    if not rows:
        return "no batch size could be measured"
    best = max(rows, key=lambda row: row["tokens_per_second"])
    share = f", {best['of_limit']:.0%} of what memory allows" if best["of_limit"] else ""
    return f"{best['tokens_per_second']:,.0f} tokens/s at batch {best['batch']}{share}"
