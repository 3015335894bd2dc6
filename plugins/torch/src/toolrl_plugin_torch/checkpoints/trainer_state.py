"""The trainer's part of a checkpoint: optimizer, random generators, a critic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import torch

from toolrl.loop.checkpoints import unreadable_state

_FILE = Path("trainer") / "state.pt"


@dataclass(frozen=True)
class TrainerState:
    """What a trainer needs besides weights and tokenizer."""

    optimizer: Mapping[str, Any]
    """`PolicyOptimizer.state_dict()`; empty where ranks wrote shards."""
    random: Mapping[str, Any]
    """`random_state.capture()`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """What else the trainer learns, by name: a critic."""


def write_state(folder: Path, state: TrainerState) -> None:
    """Write it into a checkpoint's folder. Raises OSError."""
    tensors = {"optimizer": dict(state.optimizer), "random": dict(state.random), "extra": dict(state.extra)}
    (folder / _FILE).parent.mkdir(exist_ok=True)
    with (folder / _FILE).open("wb") as file:
        writer = _Writer(file)
        try:
            torch.save(tensors, writer)
        except RuntimeError as error:
            raise writer.error or error from error


def read_state(path: Path) -> TrainerState:
    """That of a checkpoint, its tensors on the CPU. Raises CheckpointError."""
    try:
        tensors = torch.load(path / _FILE, map_location="cpu", weights_only=True)
        return TrainerState(tensors["optimizer"], tensors["random"], tensors.get("extra", {}))
    except Exception as error:
        raise unreadable_state(path, error) from error


def tensor_bytes(*parts: Any) -> int:
    """Bytes of all tensors in states, mappings, lists and modules; each counts once."""
    seen: dict[int, int] = {}

    def add(value: Any) -> None:
        if isinstance(value, torch.Tensor):
            seen[value.data_ptr()] = max(seen.get(value.data_ptr(), 0), value.nbytes)
        elif isinstance(value, Mapping):
            for item in value.values():
                add(item)
        elif isinstance(value, list | tuple):
            for item in value:
                add(item)
        elif hasattr(value, "state_dict"):
            add(value.state_dict())

    add(parts)
    return sum(seen.values())


class _Writer:
    """A file that remembers what the system said: torch only says at which position it failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()
