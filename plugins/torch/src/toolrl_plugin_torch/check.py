"""For `toolrl doctor`: the device that a run would choose."""

from __future__ import annotations

import torch


def check() -> str:
    """The device, in words."""
    if not torch.cuda.is_available():
        return f"device: cpu ({torch.get_num_threads()} threads)"
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return f"device: cuda ({', '.join(names)})"
