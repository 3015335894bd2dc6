"""GPUs by name: their memory and speed, for a plan."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from toolrl.errors import ConfigError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU; speeds are the makers' (dense bfloat16), None where they aren't known."""

    name: str
    bytes: int
    """All memory, as torch reports it."""
    flops: float | None = None
    """A second."""
    bandwidth: float | None = None
    """Of its memory, in bytes a second."""


GPUS = {
    "h200": Gpu("H200", int(139.8 * GIB), 989e12, 4.8e12),
    "h100": Gpu("H100", int(79.1 * GIB), 989e12, 3.35e12),
    "a100-80": Gpu("A100 80 GB", int(79.2 * GIB), 312e12, 2.04e12),
    "l40s": Gpu("L40S", int(44.4 * GIB), 362e12, 0.864e12),
}
_FORM = re.compile(r"(?P<kind>[^:]+?)(:(?P<count>[1-9]\d*))?")


def parse_gpu(text: str) -> tuple[Gpu, int]:
    """`h200`, or GiB of memory, and how many a node has: `h200:8`, `48:2`. Raises ConfigError."""
    found = _FORM.fullmatch(text.strip().lower())
    kind = found["kind"] if found else ""
    gpu = GPUS.get(kind)
    if gpu is None and re.fullmatch(r"\d+(\.\d+)?", kind) and float(kind) > 0:
        gpu = Gpu(f"GPU of {kind} GiB", int(float(kind) * GIB))
    if gpu is None or found is None:
        raise ConfigError(
            f"--gpu: {text!r} is no GPU that a plan knows",
            hint=f"Give {', '.join(GPUS)} or a number of GiB, and :N for N of them in a node, such as h200:8 or 48:2.",
        )
    return gpu, int(found["count"] or 1)


def gpu_here(device: torch.device) -> Gpu:
    """The CUDA device that this process computes on."""
    properties = torch.cuda.get_device_properties(device)
    known = next((gpu for key, gpu in GPUS.items() if key.partition("-")[0] in properties.name.lower()), None)
    speeds = (known.flops, known.bandwidth) if known else (None, None)
    return Gpu(properties.name, properties.total_memory, *speeds)
