"""One rank of a test: `python sequence_rank.py FOLDER`, in an environment as torchrun makes it.

FOLDER holds `work.pkl`: models and cases, see `work`. The first rank leaves `found.pt`.
"""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

from toolrl.loop.ranks import Ranks
from toolrl_plugin_torch import compiled
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.options import TrainerConfig
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.sharding.dtensor import full
from toolrl_plugin_torch.sharding.process_group import join
from toolrl_plugin_torch.trainer import PolicyTrainer


class PadOnly:
    """A tokenizer as far as a trainer sees it."""

    pad_token_id = 0


def work(model: Any, case: dict[str, Any], folder: Path, ranks: Ranks) -> dict[str, Any]:
    """Metrics of each step, whole gradients of each update, and bytes that the first step saves for backward passes; or
    the error."""
    dtype = getattr(torch, case.get("dtype", "float64"))
    model = copy.deepcopy(model).to(dtype)
    if case.get("checkpointing"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    compiled.BACKEND = "aot_eager"
    policy = PolicyModel(model, PadOnly(), "tiny", torch.device("cpu"), dtype, compile=case.get("compile", False))
    settings = TrainerConfig(learning_rate=1e-3, steps=4, **case.get("settings", {}))
    try:
        trainer = PolicyTrainer(
            policy, settings, AlgorithmConfig(**case["algorithm"]), folder, temperature=1.0, longest=16, ranks=ranks
        )
    except Exception as error:  # noqa: BLE001 - for the test to see
        return {"error": str(error)}
    clip, gradients = trainer.optimizer.clip, list[dict[str, torch.Tensor]]()

    def keep() -> float:
        found = {it.name: it.gradient for it in trainer.optimizer._trained if it.gradient is not None}
        gradients.append({name: full(gradient).clone() for name, gradient in found.items()})
        return clip()

    trainer.optimizer.clip = keep  # type: ignore[method-assign]
    saved: dict[int, int] = {}

    def count(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.grad_fn is not None:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        metrics = [trainer.update(groups) for groups in case["steps"]]
    return {"metrics": metrics, "gradients": gradients, "saved": sum(saved.values())}


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    group = join("cpu", 120.0)
    given = pickle.loads((place / "work.pkl").read_bytes())
    results = {name: work(given["models"][case["model"]], case, place, group) for name, case in given["cases"].items()}
    of_ranks = group.gather({name: found.get("metrics") for name, found in results.items()}, "the metrics")
    assert all(metrics == of_ranks[0] for metrics in of_ranks), "the ranks report the same metrics"
    if group.first:
        torch.save(results, place / "found.pt")
    group.leave()
