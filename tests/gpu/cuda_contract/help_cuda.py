"""vLLM's config as toolrl starts it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.executor import Executor

from toolrl_plugin_vllm import build
from toolrl_plugin_vllm.options import VllmEngineOptions

EXTERNAL, IN_PROCESS, PROCESSES = "ExecutorWithExternalLauncher", "UniProcExecutor", "MultiprocExecutor"


def save_model(folder: Path) -> None:
    """Config and tokenizer of a small Qwen3."""
    config = transformers.Qwen3Config(
        vocab_size=272, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=1, head_dim=64, max_position_embeddings=4096, architectures=["Qwen3ForCausalLM"],
    )  # fmt: skip
    config.save_pretrained(folder)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE({"a": 0}, [])))
    tokenizer.save_pretrained(folder)


def start(model: Path, options: dict[str, Any] | None = None, **place: Any) -> tuple[VllmConfig, str]:
    """The config that vLLM makes of these options of the engine, and its executor."""
    given = {"device": "cuda", "dtype": "torch.bfloat16", **place}
    arguments = build.arguments(VllmEngineOptions(**(options or {})), model=str(model), cpu=False, **given)
    with build.environment(build.PER_START | {"RANK": "0", "LOCAL_RANK": "0"}):
        config = EngineArgs(**arguments).create_engine_config()
        return config, Executor.get_class(config).__name__
