"""The card itself, and the bfloat16 noise of the checks that a run makes when it starts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from device import device, model_folder, random_policy, seconds
from figures import Figures


def card(figures: Figures, dry: bool) -> None:
    where = device(dry)
    on_gpu = where.type == "cuda"
    name = torch.cuda.get_device_name(where) if on_gpu else "a CPU"
    source = torch.ones(2**24 if dry else 2**31, dtype=torch.uint8, device=where)
    target = torch.empty_like(source)
    copied = seconds(where, lambda: target.copy_(source), rounds=10, warm=3)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    memory = torch.cuda.get_device_properties(where).total_memory if on_gpu else 0
    figures.put("copy on the device", 2 * source.nbytes / copied / 1e12, card=name, memory=memory, **versions)
    for dtype, size in ((torch.bfloat16, 8192), (torch.float32, 4096)):
        size = 256 if dry else size
        one, two = (torch.randn(size, size, device=where).to(dtype) for _ in range(2))
        taken = seconds(where, lambda one=one, two=two: torch.mm(one, two), rounds=10, warm=3)
        figures.put(f"matmul in {str(dtype).removeprefix('torch.')}", 2 * size**3 / taken / 1e12)
    small = torch.zeros(8, device=where)

    def many() -> None:
        for _ in range(500):
            small.add_(1.0)

    figures.put("kernel launch", seconds(where, many, rounds=5) / 500 * 1e6)


SPREAD = 6.0
"""Of the final norm's weights: logits of a random model have a trained model's spread then, and so its rounding."""


def gates(figures: Figures, dry: bool) -> None:
    from toolrl.errors import EngineError
    from toolrl_plugin_torch.logprob import TokenScorer
    from toolrl_plugin_torch.options import ModelConfig
    from toolrl_plugin_torch.prefixes.sharing import reason_by_trial
    from toolrl_plugin_torch.probe import allowed_rounding, module_logprobs, probe_ids, typical
    from toolrl_plugin_transformers.check import verify
    from toolrl_plugin_transformers.model import ModelRunner

    where = device(dry)
    with tempfile.TemporaryDirectory() as folder:
        config = ModelConfig(path=model_folder(Path(folder), "0.6B", dry), dtype="bfloat16")
        model = random_policy(config, where).model
    model.get_decoder().norm.weight.data.fill_(SPREAD)
    ids = probe_ids(None, model.config.vocab_size)
    found: dict[str, Any] = {}
    for name in ("sdpa", "eager"):
        model.set_attn_implementation(name)
        found[name] = module_logprobs(model, ids)
    model.set_attn_implementation("sdpa")
    apart = found["sdpa"] - found["eager"]
    allowed = allowed_rounding(model, lambda: module_logprobs(model, ids))
    noise = {"smaller four fifths": typical(apart), "greatest": float(apart.abs().max()), "allowed": allowed}
    figures.put("bfloat16 noise, SDPA against eager", float(apart.abs().mean()), **noise)
    try:
        greatest, reason = verify(ModelRunner(model)), None
    except EngineError as error:
        greatest, reason = 0.0, str(error)
    figures.put("gate of the embedded engine passes", float(reason is None), reason=reason, greatest=greatest)
    reason = reason_by_trial(TokenScorer(model.train()))
    figures.put("gate of shared beginnings passes", float(reason is None), reason=reason)
