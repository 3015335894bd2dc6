"""Tokens a second of the embedded engine while it decodes, after prompts that have nothing in common.

A decoding step reads every weight once, and the keys and values of every row; `limit` is the least that this takes at
the bandwidth of a copy on the device.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from device import device, model_folder, now, peak, random_policy, reset_peak, seconds
from figures import EXPECTED, Figures

STEPS = 32


def decode(figures: Figures, dry: bool) -> None:
    from toolrl_plugin_torch.options import ModelConfig
    from toolrl_plugin_transformers.model import ModelRunner

    where = device(dry)
    with tempfile.TemporaryDirectory() as folder:
        config = ModelConfig(path=model_folder(Path(folder), "0.6B", dry))
        runner = ModelRunner(random_policy(config, where).model.eval())
    source = torch.ones(2**22 if dry else 2**31, dtype=torch.uint8, device=where)
    bandwidth = 2 * source.nbytes / seconds(where, lambda: source.clone(), rounds=5)
    for name in (name for name in EXPECTED[4] if name.startswith("decode")):
        rows, context = (int(part) for part in name.removeprefix("decode ").split(" × "))
        try:
            found = _decode(runner, min(rows, 4) if dry else rows, context // 64 if dry else context, bandwidth)
        except RuntimeError as error:  # Memory that ran out.
            figures.miss(name, str(error)[:200])
            continue
        figures.put(name, found.pop("rate"), **found)


@torch.no_grad()
def _decode(runner: Any, rows: int, context: int, bandwidth: float) -> dict[str, float]:
    from toolrl.types import Sampling
    from toolrl_plugin_transformers.batch import Batch
    from toolrl_plugin_transformers.request import Request
    from toolrl_plugin_transformers.sampling import Uniforms

    where, chance, budget = runner.device, random.Random(0), 16384
    reset_peak(where)
    # Rows that were computed first decode until the last has been.
    new = 2 * rows * context // budget + rows // 8 + STEPS + 16
    batch = Batch(runner, max_batch=rows, prefill_tokens=budget, cache_tokens=rows * (context + new))
    for number in range(rows):
        prompt = chance.choices(range(runner.vocabulary), k=context)
        batch.add(Request(str(number), prompt, Sampling(new), Uniforms(number)))
    runner.enter()
    try:
        started = now(where)
        while batch.waiting:
            batch.step()
        prefilled = now(where) - started
        assert len(batch.rows) == rows, f"{len(batch.rows)} of {rows} rows decode"
        started = now(where)
        for _ in range(STEPS):
            batch.step()
        step = (now(where) - started) / STEPS
    finally:
        runner.leave()
    length = max(len(row.tokens) for row in batch.rows)
    read = sum(weight.nbytes for weight in runner.module.parameters()) + rows * length * _token_bytes(runner.module)
    return {
        "rate": rows / step, "ms a step": step * 1e3, "limit, ms": read / bandwidth * 1e3,
        "prefill, tokens/s": rows * context / prefilled, "peak GiB": peak(where) / 2**30,
    }  # fmt: skip


def _token_bytes(module: Any) -> int:
    config = module.config
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * module.dtype.itemsize)
