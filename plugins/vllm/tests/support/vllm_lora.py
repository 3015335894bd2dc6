"""A model with a LoRA adapter as the trainer has it: peft's layers inside the transformers model."""

from __future__ import annotations

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

    def tensors(self, *, merged: bool = True) -> Any:
        from toolrl_plugin_torch.adapters.lora import MergedTensors
        from toolrl_plugin_torch.policy import checkpoint_tensors

        found = MergedTensors(self._module)
        return checkpoint_tensors(self._module, found if merged else found.base)

    def path(self) -> Any:
        Weights.folders += 1
        self._module.save_pretrained(self._folder, state_dict=dict(self.tensors()))
        self._tokenizer.save_pretrained(self._folder)
        return self._folder
