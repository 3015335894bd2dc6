"""Tokens a second of the embedded engine against transformers' own `generate`, on the same weights, in one process.

    python tests/benchmarks/bench_engine.py [--json OUT.json]

Both sides sample 64 tokens at temperature 1 with no truncation and no stop, from equal prompts of 64 tokens, on one
thread. The engine also gives a log-probability for each token, which `generate` here does not. Each round
runs both sides, every other round in the opposite order; the figure is the median of the rounds, and the ratio the
median of the rounds' ratios. `groups` asks for the same prompts in groups of eight, as GRPO does, where the engine
computes each prompt once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers

from toolrl.protocols import BuildContext
from toolrl.types import Sampling
from toolrl_plugin_transformers.engine import TransformersEngine
from toolrl_plugin_transformers.options import TransformersEngineOptions

PROMPT = NEW = 64
SIZES = {
    "0.66M": {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 3, "head_dim": 32},
    "5.25M": {"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 6, "head_dim": 64},
}


def make_model(name: str) -> Any:
    """A Qwen3 with random weights."""
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        **SIZES[name], num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=4096,
        tie_word_embeddings=True, initializer_range=0.06,
    )  # fmt: skip
    config.pad_token_id = config.eos_token_id = config.bos_token_id = None
    return transformers.Qwen3ForCausalLM(config).eval()


def prompts_for(module: Any, batch: int, group: int) -> list[list[int]]:
    """`batch` prompts, each `group` times."""
    generator = torch.Generator().manual_seed(batch)
    unique = torch.randint(module.config.vocab_size, (-(-batch // group), PROMPT), generator=generator).tolist()
    return [unique[i // group] for i in range(batch)]


def generate_side(module: Any, prompts: list[list[int]]) -> Callable[[], int]:
    """transformers' generate with its dynamic cache."""
    ids = torch.tensor(prompts)
    mask = torch.ones_like(ids)

    def run() -> int:
        with torch.no_grad():
            out = module.generate(
                ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
                max_new_tokens=NEW, min_new_tokens=NEW,
            )  # fmt: skip
        return (out.shape[1] - ids.shape[1]) * out.shape[0]

    return run


def engine_side(
    engine: TransformersEngine, loop: asyncio.AbstractEventLoop, prompts: list[list[int]]
) -> Callable[[], int]:
    """The embedded engine; its cache is dropped between rounds, as a weight update does."""
    rounds = 0

    async def everything() -> int:
        nonlocal rounds
        rounds += 1
        jobs = [engine.generate(prompt, Sampling(NEW), session=f"{rounds}.{i}") for i, prompt in enumerate(prompts)]
        results = await asyncio.gather(*jobs)
        for i in range(len(prompts)):
            await engine.close(f"{rounds}.{i}")
        return sum(len(result.ids) for result in results)

    def run() -> int:
        return loop.run_until_complete(everything())

    return run


def measure(sides: dict[str, Callable[[], int]], rounds: int) -> dict[str, Any]:
    """Medians of tokens a second, and of the ratio to `generate` within each round."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        side()
    for index in range(rounds):
        for name in list(sides) if index % 2 == 0 else reversed(list(sides)):
            started = time.perf_counter()
            tokens = sides[name]()
            rates[name].append(tokens / (time.perf_counter() - started))
    result: dict[str, Any] = {name: round(statistics.median(values)) for name, values in rates.items()}
    for name, values in rates.items():
        if name != "generate":
            ratios = [a / b for a, b in zip(values, rates["generate"], strict=True)]
            result[f"{name}/generate"] = round(statistics.median(ratios), 2)
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 32, 64, 128])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for name in SIZES:
        module = make_model(name)
        loop = asyncio.new_event_loop()
        weights: Any = SimpleNamespace(version=0, module=lambda module=module: module)
        engine = TransformersEngine(TransformersEngineOptions(), BuildContext("transformers", weights=weights))
        loop.run_until_complete(engine.start())
        for batch in args.batch:
            for group in (1, 8):
                prompts = prompts_for(module, batch, group)
                sides = {"generate": generate_side(module, prompts), "engine": engine_side(engine, loop, prompts)}
                row = {"model": name, "batch": batch, "group": group, **measure(sides, args.rounds)}
                print(json.dumps(row), flush=True)
                rows.append(row)
        loop.run_until_complete(engine.stop())
        loop.close()
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
