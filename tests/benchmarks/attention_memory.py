"""Memory of attention over trees of 16k, 32k and 64k tokens, forward and backward, in float32 on a CPU.

    python tests/benchmarks/attention_memory.py

Two trees of each size: one sequence, and a prompt with 15 answers as long as it. 4 heads of 16, one key head. Prints
the bytes kept for the backward pass over those that FlashAttention keeps (query, key, value, output, log-sum-exp), and
how far the process's peak (VmHWM) rises by the inputs and both passes, in all and for each token.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEADS, KEY_HEADS, DIM = 4, 1, 16
SIZES = (2**14, 2**15, 2**16)
KINDS = ("one sequence", "16 nodes")


def peak() -> int:
    """Of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


def measure(tokens: int, kind: str) -> None:
    """Prints bytes kept, bytes that FlashAttention keeps, and the rise of the peak."""
    import torch

    from toolrl_plugin_torch.prefixes.attention import tree_attention
    from toolrl_plugin_torch.prefixes.tree import TokenTree, grow

    part = tokens // 16  # A tree leaves out the last token of each sequence, as it predicts nothing.
    prompt = [0] * part
    several = [prompt + [number] * (part + 1) for number in range(1, 16)]
    tree = grow([[0] * (tokens + 1)] if kind == KINDS[0] else several)
    assert tree.positions == tokens
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def attend(tree: TokenTree) -> None:
        shapes = [(tree.positions, heads, DIM) for heads in (HEADS, KEY_HEADS, KEY_HEADS)]
        inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            out = tree_attention(*inputs, tree, DIM**-0.5)
        out.sum().backward()

    torch.set_num_threads(1)
    attend(grow([[0] * 65]))  # What torch loads at first isn't counted.
    kept.clear()
    needed = 4 * tokens * (2 * (HEADS + KEY_HEADS) * DIM + HEADS)
    before = peak()
    attend(tree)
    print(sum(kept.values()), needed, peak() - before)


def main() -> None:
    print("| | tokens | kept over FlashAttention's | peak, MiB | bytes a token |")
    print("|---|---|---|---|---|")
    for kind in KINDS:
        for tokens in SIZES:
            command = [sys.executable, __file__, str(tokens), kind]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            kept, needed, rise = map(int, done.stdout.split()[-3:])
            row = f"{kept / needed:.3f} | {rise / 2**20:.0f} | {rise / tokens:,.0f}"
            print(f"| {kind} | {tokens:,} | {row} |", flush=True)


if __name__ == "__main__":
    measure(int(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 1 else main()
