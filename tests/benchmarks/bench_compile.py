"""What torch.compile gives an update on a CPU: forward and backward through the layers of a small Qwen3, in float32.

    python tests/benchmarks/bench_compile.py [--rounds 6] [--json OUT]

The same 8 × 368 tokens go through the module, through the module compiled, and through the layers that updates use on
a CPU (`train/fused.py`), there without any common beginning, so that all three compute the same. One thread; each round
runs all three, every other round in the opposite order, and a ratio is the median of the rounds' ratios of processor
time. The time to compile comes apart. torch.compile needs a C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from toolrl_plugin_torch.fused.model import FusedLayers
from toolrl_plugin_torch.prefixes.tree import grow

ROWS, TOKENS = 8, 368


def model() -> Qwen3ForCausalLM:
    """4.2M random parameters."""
    torch.manual_seed(0)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=4096, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=64, tie_word_embeddings=True, max_position_embeddings=1024,
        )
    ).float()  # fmt: skip


def ways(net: Qwen3ForCausalLM) -> dict[str, Callable[[], torch.Tensor]]:
    """Each gives hidden states of all tokens."""
    whole = torch.randint(net.config.vocab_size, (ROWS, TOKENS + 1))
    whole[:, 0] = torch.arange(ROWS)  # No two rows begin alike, so that a tree shares nothing.
    tree = grow(whole.tolist())
    rows = whole[:, :-1]  # What comes after the last token is nothing that an update asks for.
    assert tree.positions == rows.numel(), "a tree of rows that share nothing has all their tokens but the last"
    compiled, fused = torch.compile(net.model), FusedLayers.of(net)
    assert fused is not None, "a Qwen3 in float32 on a CPU goes through the fused layers"
    places = torch.arange(tree.positions)
    return {
        "module": lambda: net.model(input_ids=rows, use_cache=False).last_hidden_state,
        "compiled": lambda: compiled(input_ids=rows, use_cache=False).last_hidden_state,
        "fused": lambda: fused(tree, places),
    }


def seconds(net: Qwen3ForCausalLM, way: Callable[[], torch.Tensor], clock: Callable[[], float]) -> float:
    """One forward and backward."""
    net.zero_grad(set_to_none=True)
    begin = clock()
    way().square().mean().backward()
    return clock() - begin


def measure(rounds: int) -> dict[str, object]:
    """Seconds and ratios of all ways."""
    net = model()
    found = ways(net)
    first = {name: seconds(net, way, time.perf_counter) for name, way in found.items()}
    taken: dict[str, list[float]] = {name: [] for name in found}
    for number in range(rounds):
        for name in list(found)[:: -1 if number % 2 else 1]:
            taken[name].append(seconds(net, found[name], time.process_time))
    return {
        "seconds": {name: statistics.median(values) for name, values in taken.items()},
        "over_module": {
            name: statistics.median(one / base for one, base in zip(values, taken["module"], strict=True))
            for name, values in taken.items()
        },
        "seconds_to_compile": first["compiled"],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6, help="times that each way is measured; 6")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    text = json.dumps(measure(options.rounds), indent=1)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
