"""How many tokens the cache may hold where the options don't say."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from toolrl_plugin_transformers.cache import CacheShape

SHARE = 0.25
"""Of the memory; the rest is the model's, the optimizer's and the activations'."""


def default_cache_tokens(shape: CacheShape) -> int:
    """A quarter of the device's memory, of what is free on a CPU, in tokens."""
    if shape.device.type == "cuda":
        total = torch.cuda.get_device_properties(shape.device).total_memory
    else:
        total = available_memory()
    return max(1024, int(total * SHARE) // shape.bytes_per_token)


def available_memory() -> int:
    """Bytes of main memory that a process can still get, a container's limit respected."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        found.append(int(text))
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        if "MemAvailable" in fields:
            found.append(int(fields["MemAvailable"].split()[0]) * 1024)
    return min(found)
