"""One rank of a test: `python ranks_worker.py FOLDER`, in an environment as torchrun makes it.

FOLDER holds `work.pkl`: a model, and cases to train it by. The first rank leaves `results.pt`.
"""

from __future__ import annotations

import copy
import pickle
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from toolrl.errors import ConfigError
from toolrl.loop.ranks import Ranks
from toolrl_plugin_torch import base_trainer, offload
from toolrl_plugin_torch.adapters.lora import LoraAdapter
from toolrl_plugin_torch.algorithm import AlgorithmConfig
from toolrl_plugin_torch.checkpoints.shards import FOLDER, read_shards, write_shards
from toolrl_plugin_torch.offload import HostTransfers
from toolrl_plugin_torch.options import LoraConfig, SftConfig, TrainerConfig
from toolrl_plugin_torch.policy import PolicyModel
from toolrl_plugin_torch.sharding.dtensor import full
from toolrl_plugin_torch.sharding.process_group import join
from toolrl_plugin_torch.trainer import PolicyTrainer, SupervisedTrainer


class PadOnly:
    """A tokenizer as far as a trainer sees it."""

    pad_token_id = 0


class Elsewhere(HostTransfers):
    """A device that is the CPU, far from the buffers."""

    def buffer(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, requires_grad=False)

    def back(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer.clone()

    def lane(self, number: int) -> Any:
        return nullcontext()

    def wait(self) -> None:
        pass


def train(model: Any, case: dict[str, Any], folder: Path, ranks: Ranks) -> tuple[list[dict[str, float]], Any]:
    """Metrics of each step, and the weights after the last, of a copy of the model; for a case of `gradients` those of
    each update, before they are clipped, in the place of the weights."""
    dtype = getattr(torch, case.get("dtype", "float64"))
    policy = policy_of(case.get("model", model), case, dtype)
    model = policy.model
    if case.get("checkpointing"):
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": False})
    if "frozen" in case:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(case["frozen"] not in name)
    base_trainer.BACKEND = case.get("backend", base_trainer.BACKEND)
    trainer: Any
    offload.host_transfers = Elsewhere if case["settings"].get("offload") else lambda device: None
    if "demonstrations" in case:
        trainer = SupervisedTrainer(policy, SftConfig(from_run="x", **case["settings"]), folder, ranks=ranks)
        metrics = [trainer.update(case["demonstrations"]) for _ in range(2)]
    else:
        settings, algorithm = TrainerConfig(**case["settings"]), AlgorithmConfig(**case["algorithm"])
        heat = case.get("temperature", 1.0)
        own = {"temperature": heat, "longest": 16, **case.get("parts", {})}
        trainer = PolicyTrainer(policy, settings, algorithm, folder, ranks=ranks, **own)
        gradients = watched(trainer.optimizer) if case.get("gradients") else None
        metrics, saved = [], Saved()
        with saved.hooks if "saved" in case else nullcontext():
            for step, groups in enumerate(case["steps"]):
                if ranks.distributed and step == case.get("resumed"):
                    resume(trainer, folder, case["steps"][0])
                metrics.append(trainer.update(groups))
        if gradients is not None:
            return metrics, gradients | ({"saved": saved.total} if "saved" in case else {})
    return metrics, {name: value.clone() for name, value in policy.tensors()}


class Saved:
    """Bytes that are kept for backward passes inside of `hooks`."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self._count, lambda tensor: tensor)

    @property
    def total(self) -> torch.Tensor:
        return torch.tensor(sum(self._bytes.values()))

    def _count(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.grad_fn is not None:
            self._bytes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor


def resume(trainer: PolicyTrainer, folder: Path, groups: Any) -> None:
    """Write its tensors, update it once more, and read them again."""
    ranks, step = trainer.ranks, trainer.step
    written = write_shards(folder, step, trainer.states(), ranks)
    checkpoint = folder / f"step-{step}"
    ranks.by_first(lambda: (checkpoint / FOLDER).parent.mkdir(parents=True), "its folder")
    ranks.by_first(lambda: written.rename(checkpoint / FOLDER), "a checkpoint")
    trainer.update(groups)
    read_shards(checkpoint, trainer.states(), ranks)
    trainer.step = step


def policy_of(model: Any, case: dict[str, Any], dtype: torch.dtype = torch.float64) -> PolicyModel:
    """A policy of a copy of the model, with an adapter in a case of `lora`."""
    model = copy.deepcopy(model).to(dtype)
    policy = PolicyModel(model, PadOnly(), "tiny", torch.device("cpu"), dtype, compile="backend" in case)
    if "lora" in case:
        torch.manual_seed(0)
        policy.adapter = LoraAdapter.add(model, LoraConfig(**case["lora"]), "")
        for name, tensor in policy.adapter.state_dict().items():
            if "lora_B" in name:
                torch.nn.init.normal_(tensor, std=0.02)
    return policy


def watched(optimizer: Any) -> dict[str, torch.Tensor]:
    """By number of the update, all gradients in a row; they come as updates are made."""
    found: dict[str, torch.Tensor] = {}
    clip = optimizer.clip

    def noted() -> float:
        found[str(len(found))] = torch.cat([full(it.gradient).flatten() for it in optimizer._trained])
        return clip()  # type: ignore[no-any-return]

    optimizer.clip = noted
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = join("cpu", 120.0)
    work = pickle.loads((folder / "work.pkl").read_bytes())
    results = {}
    for name, case in work["cases"].items():
        try:
            results[name] = train(work.get("model"), case, folder, ranks)
        except ConfigError as error:
            results[name] = [{"refused": str(error)}], {}
    said = ranks.gather(results, "the results")
    for name in results:
        for other in said[1:]:
            assert other[name][0] == said[0][name][0], f"{name}: the ranks report different metrics"
            pairs = [(value, said[0][name][1][key]) for key, value in other[name][1].items() if key != "saved"]
            assert all(ours.equal(theirs) for ours, theirs in pairs), name
    if ranks.first:
        torch.save(results, folder / "results.pt")
    ranks.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
