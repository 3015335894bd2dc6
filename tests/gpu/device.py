"""Time and memory of a device, and models with random weights on it."""

from __future__ import annotations

import json
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

_ALIKE = {"model_type": "qwen3", "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 131072}
_FIELDS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
           "tie_word_embeddings")  # fmt: skip
_SIZES = {
    "0.6B": (1024, 3072, 28, 16, 8, True),
    "4B": (2560, 9728, 36, 32, 8, True),
    "8B": (4096, 12288, 36, 32, 8, False),
}
_TINY = {"head_dim": 16, "vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip


def device(dry: bool) -> torch.device:
    if not dry and not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} sees no CUDA device; --dry-run runs on a CPU")
    return torch.device("cpu" if dry else "cuda:0")


def model_folder(folder: Path, name: str, dry: bool) -> str:
    """A folder with the config of a Qwen3 of this size, and no weights."""
    shape = {**_ALIKE, **dict(zip(_FIELDS, _SIZES[name], strict=True)), **(_TINY if dry else {})}
    (folder / "config.json").write_text(json.dumps(shape))
    return str(folder)


def random_policy(config: Any, where: torch.device) -> Any:
    """A `PolicyModel` of a folder's config, made on the device."""
    import transformers

    from toolrl_plugin_torch.adapters.lora import LoraAdapter
    from toolrl_plugin_torch.device import pick_dtype
    from toolrl_plugin_torch.policy import PolicyModel, model_settings

    torch.manual_seed(0)
    dtype = pick_dtype(config.dtype, where)
    with where:
        model = transformers.AutoModelForCausalLM.from_config(model_settings(config, config.path)[1], dtype=dtype)
    if config.gradient_checkpointing is True:
        model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    policy = PolicyModel(model, SimpleNamespace(pad_token_id=0), config.path, where, dtype, compile=config.compile)
    if config.lora is not None:
        policy.adapter = LoraAdapter.add(model, config.lora, "")
    return policy


def seconds(where: torch.device, work: Callable[[], Any], *, rounds: int, warm: int = 1) -> float:
    """The median of some rounds after some that don't count."""
    found = []
    for number in range(warm + rounds):
        started = now(where)
        work()
        if number >= warm:
            found.append(now(where) - started)
    return statistics.median(found)


def now(where: torch.device) -> float:
    """Seconds, once the device has done all that it was given."""
    if where.type == "cuda":
        torch.cuda.synchronize(where)
    return time.perf_counter()


def reset_peak(where: torch.device) -> None:
    if where.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where)


def peak(where: torch.device) -> int:
    """Bytes of tensors at most since `reset_peak`; of a CPU those of the process since it began."""
    if where.type == "cuda":
        return int(torch.cuda.max_memory_allocated(where))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
