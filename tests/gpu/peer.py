"""A step of GRPO with a tool against TRL's, on the device: `tests/benchmarks/grpo_step.py` with two sizes of model.

float32 on both sides, without TF32, rounds in both orders.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from settings import ROOT, NotHereError, Settings

SIZES = {
    "5M": {},
    "108M": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
             "num_key_value_heads": 3, "head_dim": 64},
}  # fmt: skip
"""Of the benchmark's Qwen3; the second has the layers of SmolLM2-135M."""
NEEDED = ("trl", "datasets", "accelerate")


def run(settings: Settings) -> dict[str, Any]:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise NotHereError(f"{', '.join(missing)} can't be imported here; TRL's side needs {', '.join(NEEDED)}")
    import torch
    import trl

    sys.path.insert(0, str(ROOT / "tests" / "benchmarks"))
    import grpo_step as bench

    bench.DEVICE = torch.device(settings.device)
    if settings.dry:
        bench.PROMPTS = bench.GROUP = 2
    modes, rounds, batch = (["instant"], 1, 2) if settings.dry else (["instant", "instant_spread"], 3, 64)
    rows = []
    for size in ("5M",) if settings.dry else tuple(SIZES):
        bench.SIZE = {**bench.SIZE, **SIZES[size]}
        file = Path(settings.work) / f"trl-{size}.json"
        bench.main(["--modes", *modes, "--rounds", str(rounds), "--trl-batch", str(batch), "--json", str(file)])
        found = json.loads(file.read_text())
        rows += [{"model": size, "mode": mode, "ratio": found[f"ratio_{mode}"], **found[mode]} for mode in modes]
    return {"trl": trl.__version__, "rows": rows}


def headline(figures: dict[str, Any]) -> str:
    ratios = ", ".join(f"{row['model']} {row['mode']} {1 / row['ratio']:.2g}" for row in figures["rows"])
    return f"times as fast as TRL {figures['trl']}: {ratios}"
