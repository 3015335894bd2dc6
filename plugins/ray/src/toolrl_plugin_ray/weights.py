"""What of a model's weights goes to the workers, and how a worker verifies them.

An engine that reads a torch module gets what is trained, and buffers, under the module's names: every worker loads the
model itself, from where the trainer did, so what is frozen is there already. After each transfer the worker compares
digests of all its tensors with the trainer's (`toolrl_plugin_torch.probe`). An engine that holds the weights itself
gets all of them, an adapter merged in, under a checkpoint's names (`BroadcastWeights`). Tied tensors travel once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from toolrl.errors import EngineError
from toolrl_plugin_ray.messages import WeightUpdate
from toolrl_plugin_torch.probe import Probe, check_digests, digests
from toolrl_plugin_torch.sharding.transfer import receive
from toolrl_plugin_torch.weights import PolicyWeights

_OTHER_MODEL = "Every node must load the same model with the same transformers."


class BroadcastWeights(PolicyWeights):
    """A `WeightSource` in a worker that has no weights: an engine's processes receive them at `rendezvous`."""

    def __init__(self, policy: Any, update: WeightUpdate) -> None:
        super().__init__(policy, update.version)
        self.rendezvous = update.place
        self._update = update

    def module(self, *, data: bool = True) -> Any:
        """See WeightSource. Raises EngineError where weights are asked for."""
        if not data:
            return super().module(data=False)
        raise EngineError("a rollout worker holds no weights beside the engine's own", where="engine")

    def tensors(self, *, merged: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
        """See WeightSource. They arrive as they are reached, once. Raises TransferBrokenError."""
        return receive(self.rendezvous)

    def digests(self) -> dict[str, int]:
        """See WeightSource."""
        return dict(self._update.digests)

    def probe(self) -> Probe:
        """See WeightSource."""
        assert self._update.probe is not None, "the trainer sends it"
        return self._update.probe

    def path(self) -> Path:
        """Raises EngineError."""
        return Path(self.module())


def receivers(options: Any) -> int:
    """How many processes of an engine of these options receive the trainer's weights themselves; 0 where it reads a
    torch module."""
    return int(getattr(options, "weight_receivers", 0))


def trained(module: Any) -> dict[str, Any]:
    """The tensors that an update may change, those of one storage once."""
    every = module.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in every if not parameter.requires_grad}
    tensors = {name: it for name, it in module.state_dict().items() if name not in frozen and it.numel()}
    return dict(_distinct(tensors))


def write(sent: Mapping[str, torch.Tensor], module: Any) -> None:
    """Write the trainer's tensors into a module's own. Raises EngineError where its model has others."""
    own = module.state_dict()
    for name in [*sent, *trained(module)]:
        given, found = (_described(tensors.get(name)) for tensors in (sent, own))
        if given != found:
            raise EngineError(
                f"the trainer sends {name!r} as {given}, and the worker's model has {found}",
                where="model.path",
                hint=_OTHER_MODEL,
            )
    with torch.no_grad():
        for name, tensor in sent.items():
            own[name].copy_(tensor)


def verify(update: WeightUpdate, module: Any) -> None:
    """Raises EngineError where a module's tensors, frozen ones too, aren't bit for bit the trainer's."""
    owner = f"after a transfer of version {update.version} a rollout worker"
    own = module.state_dict()
    check_digests(digests((name, own[name]) for name in update.digests), update.digests, owner=owner, hint=_OTHER_MODEL)


def _described(tensor: torch.Tensor | None) -> str:
    """`float32 (50, 16)`."""
    return "nothing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}".removeprefix("torch.")


def _distinct(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in tensors.items():
        identity = (tensor.data_ptr(), tuple(tensor.shape))
        if not tensor.numel() or identity not in seen:
            seen.add(identity)
            yield name, tensor
