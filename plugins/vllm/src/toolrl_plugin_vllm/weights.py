"""How a `WeightSource` becomes what vLLM loads: tensors under the names of a checkpoint.

A checkpoint's names are what vLLM knows. For most models those are the names of the trainer's own tensors, which are
then handed over as they are; where transformers changes names or shapes when it reads a checkpoint, a folder is written
at each update and read from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from toolrl.errors import EngineError
from toolrl.protocols import WeightSource

_REPORT = "Tensors were changed or left out on their way: resume the run, and report it if it happens again."


class WeightTransfer:
    """All tensors. Made once, from the weights that vLLM was started with."""

    request: Any = None
    """vLLM's `LoRARequest` for every generation; None, as whole weights need none."""

    def __init__(self, weights: WeightSource, folder: Path, *, in_process: bool) -> None:
        self._shapes = checkpoint_shapes(folder)
        self._received: list[Mapping[str, int]] = []
        """Digests by each of vLLM's processes."""
        tensors: Mapping[str, Any] = weights.state_dict() if in_process else {}
        self.in_memory = in_process and all(_has(tensors, name, shape) for name, shape in self._shapes.items())
        """Whether tensors are handed over without a file between."""

    def load(self, engine: Any, weights: WeightSource) -> None:
        """Put weights into vLLM's engine, in place; its caches are the caller's to empty."""
        if self.in_memory:
            self._received = engine.collective_rpc("toolrl_load", args=(self._one_by_one(weights.state_dict()),))
        else:
            self._received = engine.collective_rpc("toolrl_load_folder", args=(str(weights.path().absolute()),))

    def check(self, weights: WeightSource, who: str) -> None:
        """Raises EngineError where vLLM received others than the trainer's. Renamed or merged tensors have no other
        source than what was sent."""
        if not self._received:
            return
        from toolrl_plugin_torch.probe import check_digests, digests

        own, sent = weights.module().state_dict(), weights.state_dict()
        sources = ((name, own if name in own else sent) for name in self._shapes)
        wanted = digests((name, by[name]) for name, by in sources if _has(by, name, self._shapes[name]))
        for found in self._received:
            check_digests(found, wanted, owner=who, hint=_REPORT)

    def _one_by_one(self, tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        # A source may compute a tensor when it is asked for; all of them at once would be a second model.
        for name in self._shapes:
            yield name, tensors[name].detach()

    def close(self) -> None:
        """Nothing of its own was written."""


def _has(tensors: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> bool:
    return name in tensors and tuple(tensors[name].shape) == shape


def checkpoint_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name to shape of every tensor of a checkpoint, from the files' headers."""
    return {name: tuple(file.get_slice(name).get_shape()) for file, name in _stored(folder)}


def read_folder(folder: Path) -> Iterator[tuple[str, Any]]:
    """(name, tensor) of every tensor of a checkpoint."""
    return ((name, file.get_tensor(name)) for file, name in _stored(folder))


def _stored(folder: Path) -> Iterator[tuple[Any, str]]:
    """Each tensor's open file and name. Raises EngineError where a folder has none."""
    from safetensors import safe_open

    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise EngineError(f"there are no *.safetensors in {str(folder)!r}", where="engine")
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - it is no mapping
                yield file, name
