"""The trainer's part of a checkpoint: weights, and the state of optimizer, random generators, critic and reference."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from toolrl.errors import CheckpointError, ConfigError
from toolrl.loop.checkpoints import unreadable_state
from toolrl_plugin_torch.adapters.lora import adapter_base
from toolrl_plugin_torch.policy import PolicyModel

_FILE = Path("trainer") / "state.pt"
_LORA_OF_RUN = "Resume with the model.lora that the run began with, or start a new run from these weights."


class Stateful(Protocol):
    """What ranks save together, each its part of the tensors."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The live tensors by name; a checkpoint is read into them."""
        ...

    def write_back(self) -> None:
        """The tensors have been read."""
        ...


def write_state(folder: Path, optimizer: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    """Write an optimizer's state, what else the trainer learns by name (`extra`), and the states of the process's
    random generators into a checkpoint's folder. Raises OSError."""
    state = {"optimizer": dict(optimizer), "random": _random_states(), "extra": dict(extra)}
    (folder / _FILE).parent.mkdir(exist_ok=True)
    try:
        torch.save(state, folder / _FILE)
    except RuntimeError as error:  # torch's own error for a file that can't be written
        raise OSError(str(error)) from error


def read_state(path: Path) -> dict[str, Any]:
    """`optimizer`, `random` and `extra` of a checkpoint, tensors on the CPU. Raises CheckpointError."""
    try:
        state = torch.load(path / _FILE, map_location="cpu", weights_only=True, mmap=True)
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
    if policy.adapter is None:
        try:
            policy.read(str(path))
        except ConfigError as error:
            raise CheckpointError(error.message, where=str(path), hint=error.hint) from error
        return
    policy.adapter.restore(path, hint=_LORA_OF_RUN)
    if policy.shards is not None:
        policy.shards.copy_from(policy.model)


def _random_states() -> dict[str, Any]:
    """Of Python, numpy, torch and CUDA: numbers, lists and uint8 tensors, which torch loads with `weights_only`."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def restore_random(state: Mapping[str, Any]) -> None:
    """Put the states of all random generators back. CUDA's are left alone where there are more or fewer devices now."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all([one.cpu() for one in state["cuda"]])
