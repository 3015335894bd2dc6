"""What is added to the worker of vLLM's CUDA build."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from help_cuda import save_model, start
from vllm.config import get_current_vllm_config_or_none
from vllm.v1.worker.gpu_worker import Worker

from toolrl_plugin_vllm.extension import WorkerExtension


class Mixed(Worker, WorkerExtension):
    """As vLLM mixes them."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


def test_weights_are_reloaded_with_vllms_config_at_hand(tmp_path: Path) -> None:
    """Kernels of fp8 weights and of experts are made anew then, and ask for it."""
    save_model(tmp_path)
    config, _ = start(tmp_path, {"quantization": "fp8"})
    seen = []

    def reload_weights(weights_iterator: Any, is_checkpoint_format: bool) -> None:
        seen.append((get_current_vllm_config_or_none(), [name for name, _ in weights_iterator]))

    runner = SimpleNamespace(model=torch.nn.Module(), reload_weights=reload_weights)
    Mixed(vllm_config=config, model_runner=runner).toolrl_load([("a", torch.zeros(3))])
    assert seen == [(config, ["a"])]


def test_no_method_of_the_extension_hides_one_of_the_worker() -> None:
    assert not [name for name in vars(WorkerExtension) if not name.startswith("__") and hasattr(Worker, name)]
