"""The trainer's part of a checkpoint: weights, and the state of optimizer, random generators and a critic."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from toolrl.errors import CheckpointError
from toolrl.loop.checkpoints import unreadable_state
from toolrl_plugin_torch import random_state
from toolrl_plugin_torch.adapters.lora import adapter_base
from toolrl_plugin_torch.policy import PolicyModel

_FILE = Path("trainer") / "state.pt"
_LORA_OF_RUN = "Resume with the model.lora that the run began with, or start a new run from these weights."


def write_state(folder: Path, optimizer: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Write an optimizer's state, what else the trainer learns by name (`extra`), and the states of the process's
    random generators into a checkpoint's folder. Raises OSError."""
    state = {"optimizer": dict(optimizer), "random": random_state.capture(), "extra": dict(extra)}
    (folder / _FILE).parent.mkdir(exist_ok=True)
    with (folder / _FILE).open("wb") as file:
        writer = _Writer(file)
        try:
            torch.save(state, writer)
        except RuntimeError as error:
            raise writer.error or error from error


def read_state(path: Path) -> dict[str, Any]:
    """`optimizer`, `random` and `extra` of a checkpoint, tensors on the CPU. Raises CheckpointError."""
    try:
        state = torch.load(path / _FILE, map_location="cpu", weights_only=True)
        return {"optimizer": state["optimizer"], "random": state["random"], "extra": state.get("extra", {})}
    except Exception as error:
        raise unreadable_state(path, error) from error


def load_weights(policy: PolicyModel, path: Path) -> None:
    """Load a checkpoint's weights in place: an engine that shares the tensors sees the new values. Raises
    CheckpointError."""
    base = adapter_base(path)
    if (policy.adapter is None) != (base is None):
        found, wanted = ("an adapter", "no model.lora") if base is not None else ("a whole model", "model.lora")
        raise CheckpointError(f"it holds {found}, and the config has {wanted}", where=str(path), hint=_LORA_OF_RUN)
    if policy.adapter is not None:
        policy.adapter.restore(path, hint=_LORA_OF_RUN)
        return
    saved = type(policy.model).from_pretrained(path, dtype=policy.model.dtype)
    with torch.no_grad():
        policy.model.load_state_dict(saved.state_dict())


class _Writer:
    """A file that keeps the system's error: torch's own names the position only."""

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
