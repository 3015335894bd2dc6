"""The figures of the four calls: what each is expected to be, and the file that each is written to at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple


class Expected(NamedTuple):
    """Of a figure, on one H200."""

    unit: str
    value: str = ""
    """By arithmetic over the card's limits; empty where nothing was computed."""
    anchor: str = ""
    """What a data sheet or a peer has published."""


_RATE, _SHARE = "tokens/s", "ratio"
_PRIME_RL = "prime-rl, one H100"  # benchmarks/results/BENCHMARKS.md in its repository
_UPDATES = {
    "0.6B, 16k": Expected(_RATE, "25–33k", f"{_PRIME_RL}: RL 11.9k, SFT 25.5k"),
    "0.6B, 16k, checkpointing": Expected(_RATE, "20–26k"),
    "0.6B, 16k in groups of 8": Expected(_RATE, "45–60k"),
    "0.6B, 16k in groups of 8, shared": Expected(_RATE, "55–75k"),
    "0.6B, 65k, checkpointing": Expected(_RATE, "8–12k", f"{_PRIME_RL}: 10.15k"),
    "4B LoRA, 16k, checkpointing": Expected(_RATE, "6–8k", f"{_PRIME_RL}: 6.23k"),
    "4B, 16k, checkpointing": Expected(_RATE, "5–7k"),
    "4B, 16k, checkpointing, optimizer offloaded": Expected(_RATE, "4–6k"),
}
_KERNELS = {
    "merge": Expected("TFLOP/s", "forward 300–400, backward about 250"),
    "one sequence": Expected("TFLOP/s", "forward 350–400, backward about 300"),
    "padded": Expected("TFLOP/s", "useful work only: the merge is ≥ 1.15 × this"),
    "cuDNN": Expected("TFLOP/s", "useful work only: above padded"),
    "flex": Expected("TFLOP/s", "below the merge"),
}
_LOADS = [f"GQA {ratio}:1, {length}" for ratio in (2, 4) for length in ("16k", "64k")]

EXPECTED: dict[int, dict[str, Expected]] = {
    1: {
        "copy on the device": Expected("TB/s", "4.3", "data sheet: 4.8"),
        "matmul in bfloat16": Expected("TFLOP/s", "770–800", "data sheet: 989"),
        "matmul in float32": Expected("TFLOP/s", "about 50", "data sheet: 67"),
        "kernel launch": Expected("µs", "3–6"),
        "bfloat16 noise, SDPA against eager": Expected("nats", "0.03–0.25"),
        "gate of the embedded engine passes": Expected("1 or 0", "1"),
        "gate of shared beginnings passes": Expected("1 or 0", "1"),
        **_UPDATES,
        **{f"{name}: peak over plan": Expected(_SHARE, "0.9–1.1") for name in _UPDATES},
    },
    2: {
        **{
            f"{load}: {kernel} {way}": expected
            for load in _LOADS
            for kernel, expected in _KERNELS.items()
            for way in ("forward", "backward")
        },
        **{
            f"{load}: error of {kernel}": Expected("relative norm", "about 0.003; the merge's as the others'")
            for load in _LOADS
            for kernel in _KERNELS
            if kernel != "one sequence"
        },
    },
    3: {
        "0.6B, 16k: compiled over eager": Expected(_SHARE, "1.15–1.30"),
        "8B LoRA, 16k: compiled over eager": Expected(_SHARE, "1.05–1.10"),
        "sharded over whole: gradient norm": Expected(_SHARE, "1.00 ± 0.01"),
        "sharded over whole: seconds": Expected(_SHARE, "1.0–1.2"),
        "host to device, pinned": Expected("GB/s", "about 50"),
        "device to host, pinned": Expected("GB/s", "about 50"),
        "CUDA IPC of 16 GB, until it can be read": Expected("ms", "< 50"),
        "CUDA IPC of 16 GB, copied": Expected("TB/s", "about 2 (read and written: 4)"),
    },
    4: {
        **{
            f"decode {rows} × {context}": Expected(_RATE, "18–25k" if (rows, context) == (128, 256) else "")
            for context, most in ((256, 512), (4096, 128), (16384, 32))
            for rows in (1, 8, 32, 128, 512)
            if rows <= most
        },
        "differences of a killed and resumed run": Expected("count", "0"),
        "accuracy after the cold start": Expected(_SHARE),
        "accuracy after ten steps": Expected(_SHARE),
    },
}


class Figures:
    """Prints each figure of a call and appends it to a file as a line of JSON."""

    def __init__(self, call: int, file: Path) -> None:
        self.call = call
        self._file = file

    def put(self, figure: str, value: float, **more: Any) -> None:
        """`figure` is one that EXPECTED has; `more` are figures beside it."""
        expected = EXPECTED[self.call][figure]
        print(f"{figure:<52}{_short(value):>10} {expected.unit:<14}", end="")
        print(f"{expected.value and f'expected {expected.value}':<40}{expected.anchor}".rstrip())
        if more:
            print(f"{'':4}" + ", ".join(f"{name} {_short(it)}" for name, it in more.items()))
        about = {"unit": expected.unit, "expected": expected.value, "anchor": expected.anchor}
        self._write({"figure": figure, "value": value, **about, **more})

    def miss(self, what: str, reason: str) -> None:
        """Record what wasn't measured."""
        print(f"{what:<52}not measured: {reason}")
        self._write({"missing": what, "reason": reason})

    def _write(self, line: dict[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"call": self.call, **line}) + "\n")


def _short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
