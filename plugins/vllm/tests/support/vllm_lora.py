"""A model with a LoRA adapter as the trainer has it: peft's layers inside the transformers model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm_help import Weights, make_family


def add_adapter(family: str, *, tied: bool, rank: int = 4, rslora: bool = False, dtype: Any = None) -> Any:
    """The model, its adapter already trained: B isn't 0."""
    import peft

    module = make_family(family, tied=tied)
    if dtype is not None:
        module = module.to(dtype)
    settings = peft.LoraConfig(
        r=rank, lora_alpha=8, use_rslora=rslora, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    wrapped = peft.get_peft_model(module, settings, autocast_adapter_dtype=False)
    train(module, 1)
    return wrapped.get_base_model()


def train(module: Any, seed: int, *, by: float = 0.1) -> None:
    """Move the adapter, and nothing else."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if ".lora_" in name:
                parameter.add_((torch.randn(parameter.shape, generator=generator) * by).to(parameter.dtype))


class MergedWeights(Weights):
    """Gives the weights as the trainer's policy does: merged, a tensor at a time, when it is asked for."""

    def state_dict(self) -> Any:
        return _Merged(self._module)

    def path(self) -> Any:
        self._module.save_pretrained(self._folder, state_dict=dict(self.state_dict()))
        self._tokenizer.save_pretrained(self._folder)
        return self._folder


class _Merged(Mapping[str, Any]):
    def __init__(self, module: Any) -> None:
        self._layers = {f"{name}.weight": layer for name, layer in module.named_modules() if hasattr(layer, "lora_A")}
        self._tensors = {
            name.replace(".base_layer.", "."): tensor
            for name, tensor in module.state_dict().items()
            if ".lora_" not in name
        }

    def __getitem__(self, name: str) -> Any:
        tensor, layer = self._tensors[name], self._layers.get(name)
        if layer is None:
            return tensor
        wide = (layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float()).detach()
        return (tensor.float() + layer.scaling["default"] * wide).to(tensor.dtype)

    def __iter__(self) -> Any:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)
