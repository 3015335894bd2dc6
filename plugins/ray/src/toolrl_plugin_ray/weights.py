"""What of a model's weights goes to the workers, and how a worker verifies them.

Only what is trained travels, and buffers: every worker loads the model itself, from where the trainer did, so what is
frozen is there already. Tied tensors travel once. After each transfer the worker compares digests of all its tensors
with the trainer's (`toolrl_plugin_torch.probe`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from toolrl.errors import EngineError
from toolrl_plugin_ray.messages import WeightUpdate
from toolrl_plugin_torch.probe import check_digests, digests

_OTHER_MODEL = "Every node must load the same model with the same transformers."


def trained(module: Any) -> dict[str, Any]:
    """The tensors that an update may change, those of one storage once."""
    every = module.named_parameters(remove_duplicate=False)
    frozen = {name for name, parameter in every if not parameter.requires_grad}
    tensors = {name: it for name, it in module.state_dict().items() if name not in frozen and it.numel()}
    return dict(_distinct(tensors))


def described(tensors: Mapping[str, Any]) -> dict[str, str]:
    """What a message says of each tensor: `float32 (50, 16)`."""
    return {name: f"{it.dtype} {tuple(it.shape)}".removeprefix("torch.") for name, it in tensors.items()}


def targets(sent: Mapping[str, str], module: Any) -> list[Any]:
    """A worker's own tensors for those that the trainer sends. Raises EngineError where its model has others."""
    own = module.state_dict()
    found = described(own)
    for name in [*sent, *trained(module)]:
        if sent.get(name) != found.get(name):
            raise EngineError(
                f"the trainer sends {name!r} as {sent.get(name, 'nothing')}, and the worker's model has "
                f"{found.get(name, 'no such tensor')}",
                where="model.path",
                hint=_OTHER_MODEL,
            )
    return [own[name] for name in sent]


def verify(update: WeightUpdate, module: Any) -> None:
    """Raises EngineError where a module's tensors, frozen ones too, aren't bit for bit the trainer's."""
    owner = f"after a transfer of version {update.version} a rollout worker"
    own = module.state_dict()
    check_digests(digests((name, own[name]) for name in update.digests), update.digests, owner=owner, hint=_OTHER_MODEL)


def _distinct(tensors: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for name, tensor in tensors.items():
        identity = (tensor.data_ptr(), tuple(tensor.shape))
        if not tensor.numel() or identity not in seen:
            seen.add(identity)
            yield name, tensor
