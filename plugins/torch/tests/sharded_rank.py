"""One rank of a test: `python sharded_rank.py FOLDER LORA`, in an environment as torchrun makes it.

FOLDER holds a model's folder `model`. The ranks load it, make an update, and hand their weights over in each way; the
first one leaves `found.pt`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

from toolrl.loop.ranks import Ranks
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration
from toolrl_plugin_torch.options import ModelConfig, SftConfig
from toolrl_plugin_torch.policy import load_policy
from toolrl_plugin_torch.sharding.process_group import join
from toolrl_plugin_torch.trainer import SupervisedTrainer

IDS = (5, 6, 7, 8, 9, 10)


def work(folder: Path, dtype: Any, lora: bool, ranks: Ranks, out: Path) -> dict[str, Any]:
    """What a policy gives before and after an update, and after a resume from its checkpoint."""
    torch.manual_seed(0)
    config = ModelConfig(path=str(folder), dtype=dtype, lora={"rank": 4} if lora else None)
    policy = load_policy(config, str(folder), torch.device("cpu"), ranks)
    weights = policy.weights(0, out)
    found: dict[str, Any] = {"before": dict(weights.tensors())}
    settings = SftConfig(from_run="x", learning_rate=1e-3, steps=4)
    trainer = SupervisedTrainer(policy, settings, out, ranks=ranks)
    found["shares"] = trainer.shares
    found["loss"] = [trainer.update([Demonstration(IDS, (0, 0, 1, 1, 0, 1))])["loss"] for _ in range(2)]
    found["probe"] = weights.probe()
    module = weights.module()
    found["module"] = {name: tensor.detach().clone() for name, tensor in module.named_parameters()}
    found["buffers"] = dict(module.named_buffers())
    found["bytes"] = trainer.saved_bytes()
    gathered = trainer.gather_state(out)
    ranks.by_first(lambda: (out / "saved" / "trainer").mkdir(parents=True), "a folder")
    ranks.by_first(lambda: trainer.save(out / "saved", gathered), "a checkpoint")
    trainer.update([Demonstration(IDS, (0, 1, 1, 1, 1, 1))])
    trainer.load(out / "saved", 2)
    found["after"] = [(name, tensor.clone()) for name, tensor in weights.tensors()]
    if ranks.distributed:
        weights.lead() if ranks.first else weights.follow()
        if ranks.first:
            next(weights.tensors())  # The other ranks go on, though this one stops.
            found["led"] = dict(weights.trained_tensors())
            weights.probe()
            weights.release()
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    group = join("cpu", 120.0)
    result = work(place / "model", sys.argv[2], sys.argv[3] == "lora", group, place / "ranks")
    if group.first:
        torch.save(result, place / "found.pt")
    group.leave()
