"""Copies between the host's pinned memory and the device, and a tensor of one process in another."""

from __future__ import annotations

from typing import Any

import torch
from device import device, now, seconds
from figures import Figures


def pinned(figures: Figures, dry: bool) -> None:
    where = device(dry)
    size = 2**22 if dry else 2**32
    host = torch.ones(size, dtype=torch.uint8, pin_memory=not dry)
    there = torch.zeros(size, dtype=torch.uint8, device=where)
    for name, target, source in (("host to device", there, host), ("device to host", host, there)):
        taken = seconds(where, lambda to=target, it=source: to.copy_(it, non_blocking=True), rounds=5)
        figures.put(f"{name}, pinned", size / taken / 1e9)


def between_processes(figures: Figures, dry: bool) -> None:
    """Another process reads a tensor of this one, and copies it on the device."""
    where = device(dry)
    size = 2**22 if dry else 2**34
    tensor = torch.ones(size, dtype=torch.uint8, device=where)
    context: Any = torch.multiprocessing.get_context("spawn")
    sent, answers = context.Queue(), context.Queue()
    process = context.Process(target=_reader, args=(sent, answers, where), daemon=True)
    process.start()
    assert answers.get(timeout=120) == "ready"
    started = now(where)
    sent.put(tensor)
    assert answers.get(timeout=120) == 1024, "the other process reads what this one wrote"
    opened = now(where) - started
    copied = answers.get(timeout=120)
    process.join(60)
    figures.put("CUDA IPC of 16 GB, until it can be read", opened * 1e3, bytes=size)
    figures.put("CUDA IPC of 16 GB, copied", size / copied / 1e12)


def _reader(sent: Any, answers: Any, where: torch.device) -> None:
    torch.ones(1, device=where)
    answers.put("ready")
    tensor = sent.get()
    answers.put(int(tensor[:: len(tensor) // 1024].sum()))
    target = torch.empty_like(tensor)
    answers.put(seconds(where, lambda: target.copy_(tensor), rounds=3))
