"""Sizes of a policy and of its training state, from the model's config alone."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import torch

from toolrl.assembly import model_source
from toolrl.errors import ConfigError, first_line
from toolrl_plugin_torch.adapters.lora import LoraAdapter, adapter_base
from toolrl_plugin_torch.config_changes import ConfigChanges
from toolrl_plugin_torch.device import pick_dtype
from toolrl_plugin_torch.model_path import missing_on_hub
from toolrl_plugin_torch.optimizer import PolicyOptimizer
from toolrl_plugin_torch.options import ModelConfig, OptimizerConfig
from toolrl_plugin_torch.plan.passes import PassBytes, pass_bytes
from toolrl_plugin_torch.policy import model_settings, stored_dtype
from toolrl_plugin_torch.prefixes.tree_attention import without_adapter
from toolrl_plugin_torch.sharding.fsdp import blocks


class PolicySizes:
    """Bytes of a policy that isn't loaded: its tensors are on the meta device. `device` is the one it would be on."""

    def __init__(self, config: ModelConfig, source: str, device: torch.device, optimizer: str = "adamw") -> None:
        self.source = source
        base = adapter_base(source) or source
        if (problem := missing_on_hub(base)) is not None:
            raise ConfigError(problem)
        try:
            loader, settings = model_settings(config, base)
            ConfigChanges.make(settings)
            self.dtype = pick_dtype(config.dtype, device, stored_dtype(settings))
            with torch.device("meta"):
                self.model: Any = loader.from_config(
                    settings, dtype=self.dtype, trust_remote_code=config.trust_remote_code
                )
        except Exception as error:
            raise ConfigError(
                f"model.path: no model can be planned from {base!r}: {first_line(error)}",
                hint="A folder with the model's config.json is enough.",
            ) from error
        self.model.tie_weights()
        self.name = type(self.model).__name__
        self.parameters = _numel(self.model.parameters())
        if config.lora is not None:
            with torch.device("meta"):
                LoraAdapter.add(self.model, config.lora, "", report=False)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.trained = _numel(trained)
        self.weights = _nbytes([*self.model.parameters(), *self.model.buffers()])
        self.trained_weights = _nbytes(trained)
        self.masters = sum(tensor.numel() * max(4, tensor.itemsize) for tensor in trained)
        """What is updated: float32 copies of 16-bit weights, or the weights themselves."""
        self.gradients = self.masters  # They are summed in the same type.
        self._optimizer = PolicyOptimizer(self.model.named_parameters(), OptimizerConfig(optimizer=optimizer))
        own = {tensor.untyped_storage()._cdata for tensor in trained}
        states = [tensor for tensor in self._optimizer.tensors().values() if tensor.untyped_storage()._cdata not in own]
        self.optimizer = _nbytes(states)
        """AdamW's averages, and masters where the weights are in 16 bits."""
        body = _numel(p for p in without_adapter(self.model).base_model.parameters() if p.requires_grad)
        self.body = body / self.trained
        """The share of trained parameters that a critic's body has: all but the head."""
        self.largest = max(tensor.nbytes for tensor in self.model.parameters())
        layers = [_numel(block.parameters()) for block in blocks(self.model)]
        self.layers = len(layers)
        self.layer = max(layers, default=0)
        """Parameters of the largest layer."""
        self.outside = _numel(self.model.parameters()) - sum(layers)
        """Parameters that belong to no layer: embedding and head."""
        self.text = self.model.config.get_text_config()
        self.positions = int(getattr(self.text, "max_position_embeddings", 0) or 2**31)
        self.token = self._token()
        """Bytes of a token's keys and values."""
        self.active = self._active()
        """Parameters that a token is computed with."""
        self._measured = lru_cache(None)(self._measure)

    def passes(self, tokens: int, *, checkpointing: bool, shares: bool, entropy: bool) -> PassBytes | None:
        """Of a micro-batch; None where the model can't be computed without data."""
        return self._measured(tokens, checkpointing, shares, entropy)

    def _measure(self, tokens: int, checkpointing: bool, shares: bool, entropy: bool) -> PassBytes | None:
        try:
            return pass_bytes(
                self.model,
                tokens,
                checkpointing=checkpointing,
                shares=shares,
                entropy=entropy,
                clear=self._optimizer.clear,
            )
        except Exception:  # noqa: BLE001 - whatever a model raises that needs the values of its tensors
            return None

    def _token(self) -> int:
        text = self.text
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        return int(2 * text.num_hidden_layers * heads * dim * self.dtype.itemsize)

    def _active(self) -> int:
        experts = _numel(p for name, p in self.model.named_parameters() if ".experts." in name)
        count = next((n for key in ("num_experts", "num_local_experts", "n_routed_experts")
                      if (n := getattr(self.text, key, None))), 1)  # fmt: skip
        return self.parameters - experts + experts * (getattr(self.text, "num_experts_per_tok", None) or 1) // count


def teacher_bytes(config: Any) -> int:
    """Weights of all teachers of distillation that the trainer's process loads."""
    distillation = config.algorithm.distillation
    models = [teacher.model for teacher in distillation.teachers.values()] if distillation is not None else []
    plain = config.model.model_copy(update={"lora": None})
    sources = [model_source(path, "algorithm.distillation.teachers") for path in models if path is not None]
    return sum(PolicySizes(plain, source, torch.device("cuda")).weights for source in sources)


def _numel(tensors: Iterable[torch.Tensor]) -> int:
    return sum({id(tensor): tensor.numel() for tensor in tensors}.values())


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum({id(tensor): tensor.nbytes for tensor in tensors}.values())
