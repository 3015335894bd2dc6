"""The card itself: what it copies and multiplies in a second, and what it takes to start a kernel."""

from __future__ import annotations

import platform
import statistics
from typing import Any

from clock import Clock
from settings import NotHereError, Settings

DATA_SHEET = {
    "H200": {"bfloat16": 989e12, "bandwidth": 4.8e12},
    "H100 80GB HBM3": {"bfloat16": 989e12, "bandwidth": 3.35e12},
    "H100 PCIe": {"bfloat16": 756e12, "bandwidth": 2.0e12},
    "A100-SXM4-80GB": {"bfloat16": 312e12, "bandwidth": 2.039e12},
}
"""By part of the name: dense bfloat16 operations and bytes a second, from NVIDIA's data sheets."""


def run(settings: Settings) -> dict[str, Any]:
    import torch
    import transformers

    if settings.device.startswith("cuda") and not torch.cuda.is_available():
        raise NotHereError(f"torch {torch.__version__} sees no CUDA device; --dry-run measures on the CPU")
    device = torch.device(settings.device)
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine()
    sheet = next((facts for part, facts in DATA_SHEET.items() if on_gpu and part in name), {})
    small = settings.dry
    return {
        "name": name,
        "memory": torch.cuda.get_device_properties(device).total_memory if on_gpu else None,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "bandwidth": copy_bandwidth(device, 2**24 if small else 2**31),
        "matmul": {
            str(dtype).removeprefix("torch."): matmul_rate(device, dtype, size)
            for dtype, size in (
                (torch.bfloat16, 256 if small else 8192),
                (torch.float32, 256 if small else 4096),
            )
        },
        "launch_seconds": launch_seconds(device),
        "data_sheet": sheet,
    }


def copy_bandwidth(device: Any, size: int) -> float:
    """Bytes a second of a copy from the device's memory to itself, those read and those written."""
    import torch

    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    clock = Clock(device)
    return 2 * size / min(clock.times(lambda: target.copy_(source), rounds=10, warm=3))


def matmul_rate(device: Any, dtype: Any, size: int) -> float:
    """Operations a second of a square product of random numbers, in float32 without TF32."""
    import torch

    one, two = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = statistics.median(Clock(device).times(lambda: torch.mm(one, two), rounds=10, warm=3))
    return 2 * size**3 / seconds


def launch_seconds(device: Any) -> float:
    """Seconds of a kernel that has next to nothing to do: what a step with many small ones is bound by."""
    import torch

    tensor = torch.zeros(8, device=device)

    def many() -> None:
        for _ in range(500):
            tensor.add_(1.0)

    return statistics.median(Clock(device).times(many, rounds=5, warm=1)) / 500


def headline(figures: dict[str, Any]) -> str:
    rates = ", ".join(f"{name} {rate / 1e12:.3g} TFLOP/s" for name, rate in figures["matmul"].items())
    return f"{figures['name']}: copy {figures['bandwidth'] / 1e12:.3g} TB/s, {rates}"
