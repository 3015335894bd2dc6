"""Saving and resuming: what of a trainer goes into a checkpoint, and back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from toolrl.errors import CheckpointError
from toolrl.protocols import WeightSource
from toolrl.train import random_state
from toolrl.train.checkpoint import TrainerState, latest_checkpoint, load_state, save_checkpoint
from toolrl.train.optimizer import PolicyOptimizer
from toolrl.train.policy import Policy
from toolrl.train.supply import DataPosition, KeepsPosition

_log = logging.getLogger(__name__)
_FREE = ("run", "observers", "evaluation", "threads", "device", "cluster")
"""Sections of a config that don't change what is trained."""


class Saved(Protocol):
    """What a checkpoint holds of a trainer."""

    policy: Policy
    optimizer: PolicyOptimizer
    step: int
    whole: bool

    def weights(self) -> WeightSource: ...

    def extra_state(self) -> dict[str, Any]: ...

    def load_extra_state(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class Saver:
    """Checkpoints of one run."""

    trainer: Saved
    directory: Path
    """The run's folder of checkpoints."""
    keep: int
    data: KeepsPosition
    """Knows how far the data has been used."""
    config: Mapping[str, Any]
    """The resolved config."""
    last_step: int = -1
    """Of the last checkpoint that was written or resumed."""

    def due(self, error: BaseException | None) -> bool:
        """Whether the run, ended by `error` or by nothing, leaves steps that no checkpoint holds yet. Where the user
        ended it before its first step, its start counts as one; after an error there, one mends it and starts again."""
        first = 0 if isinstance(error, asyncio.CancelledError) else 1
        return self.trainer.whole and self.trainer.step > self.last_step and self.trainer.step >= first

    def save(self) -> Path:
        """Write a checkpoint of the trainer's complete steps. Raises CheckpointError."""
        step, policy = self.trainer.step, self.trainer.policy
        position = self.data.position(step)
        state = TrainerState(
            step=step,
            version=step,
            position=position.next,
            pending=position.pending,
            config_digest=config_digest(self.config),
            optimizer=self.trainer.optimizer.state_dict(),
            random=random_state.capture(),
            extra=self.trainer.extra_state(),
        )
        path = save_checkpoint(
            self.directory,
            state,
            model=policy.model,
            tokenizer=policy.tokenizer,
            processor=policy.processor,
            keep=self.keep,
        )
        self.last_step = step
        return path

    def restore(self) -> int:
        """Take up the last whole checkpoint: its step, 0 where there is none yet. Raises CheckpointError."""
        path = latest_checkpoint(self.directory)
        if path is None:
            return 0
        state = load_state(path)
        try:
            self.data.resume(state.step, DataPosition(state.position, state.pending))
        except CheckpointError as error:
            error.where = str(path)
            raise
        if state.config_digest != config_digest(self.config):
            _log.warning("the run goes on with a config that differs from the one %s was written with", path.name)
        _load_weights(self.trainer.policy.model, path)
        self.trainer.optimizer.load_state_dict(state.optimizer)
        self.trainer.load_extra_state(state.extra)
        random_state.restore(state.random)
        self.trainer.step = self.last_step = state.step
        return state.step


def config_digest(config: Mapping[str, Any]) -> str:
    """Of what decides the training. The number of steps is no part of it, so that a run can be made longer, unless the
    learning rate falls towards the last one."""
    kept = {key: value for key, value in config.items() if key not in _FREE}
    for section in ("trainer", "sft"):
        if isinstance(kept.get(section), Mapping):
            falls = kept[section].get("schedule", "constant") != "constant"
            dropped = ("save_every", "keep_checkpoints") if falls else ("steps", "save_every", "keep_checkpoints")
            kept[section] = {key: value for key, value in kept[section].items() if key not in dropped}
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()


def _load_weights(model: Any, path: Path) -> None:
    """In place, so that an engine which shares the tensors sees the new values."""
    saved = type(model).from_pretrained(path, dtype=model.dtype)
    with torch.no_grad():
        model.load_state_dict(saved.state_dict())
