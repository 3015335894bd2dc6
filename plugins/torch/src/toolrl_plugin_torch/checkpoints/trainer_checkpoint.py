"""A trainer's part of a checkpoint: written, and taken up again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

import torch

from toolrl.errors import CheckpointError
from toolrl.loop.ranks import Ranks
from toolrl_plugin_torch import random_state
from toolrl_plugin_torch.adapters.lora import adapter_base
from toolrl_plugin_torch.checkpoints.trainer_state import TrainerState, read_state, tensor_bytes, write_state
from toolrl_plugin_torch.optimizer import PolicyOptimizer
from toolrl_plugin_torch.policy import Policy

_LORA_OF_RUN = "Resume with the model.lora that the run began with, or start a new run from these weights."


class Saved(Protocol):
    """What a checkpoint holds of a trainer."""

    policy: Policy
    optimizer: PolicyOptimizer
    ranks: Ranks
    step: int

    def extra_state(self) -> dict[str, Any]: ...

    def load_extra_state(self, state: dict[str, Any]) -> None: ...

    def optimizers(self) -> dict[str, PolicyOptimizer]:
        """All, by name; each has the weights that it trains."""
        ...

    def weights_were_loaded(self) -> None:
        """The policy's model has others now."""
        ...


def save(trainer: Saved, folder: Path, shards: Path | None) -> None:
    """Write model, tokenizer and state; `shards` is moved into the folder, or deleted where something fails."""
    policy = trainer.policy
    try:
        for part in (policy.trained, policy.tokenizer, policy.processor):
            if part is not None:
                part.save_pretrained(folder)
        write_state(folder, _state(trainer, sharded=shards is not None))
        if shards is not None:
            shards.rename(folder / "trainer" / "shards")
    except BaseException:
        if shards is not None:
            shutil.rmtree(shards, ignore_errors=True)
        raise


def saved_bytes(trainer: Saved) -> int:
    """About how many bytes `save` writes."""
    state = _state(trainer, sharded=False)
    return tensor_bytes(state.optimizer, state.random, state.extra, trainer.policy.trained)


def _state(trainer: Saved, *, sharded: bool) -> TrainerState:
    return TrainerState(
        optimizer={} if sharded else trainer.optimizer.state_dict(),
        random=random_state.capture(),
        extra=dict.fromkeys(trainer.optimizers()) if sharded else trainer.extra_state(),
    )


def load(trainer: Saved, path: Path, step: int) -> None:
    """Take up a checkpoint. Raises CheckpointError."""
    state = read_state(path)
    _load_weights(trainer.policy, path)
    trainer.weights_were_loaded()
    if (path / "trainer" / "shards").is_dir():
        from toolrl_plugin_torch.checkpoints.shards import read_shards

        read_shards(path, trainer.optimizers(), trainer.ranks)
    else:
        trainer.optimizer.load_state_dict(state.optimizer)
        trainer.load_extra_state(dict(state.extra))
    random_state.restore(state.random)
    trainer.step = step


def _load_weights(policy: Policy, path: Path) -> None:
    """In place, so that an engine which shares the tensors sees the new values."""
    base = adapter_base(path)
    if (policy.adapter is None) != (base is None):
        found, wanted = ("an adapter", "no model.lora") if base is not None else ("a whole model", "model.lora")
        raise CheckpointError(f"it holds {found}, and the config has {wanted}", where=str(path), hint=_LORA_OF_RUN)
    if policy.adapter is not None:
        policy.adapter.restore(path, hint=_LORA_OF_RUN)
        return
    model = policy.model
    saved = type(model).from_pretrained(path, dtype=model.dtype)
    with torch.no_grad():
        model.load_state_dict(saved.state_dict())
