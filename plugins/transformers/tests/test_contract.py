"""The embedded engine keeps the contracts of a plugin and of a rollout engine."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from toolrl.protocols import BuildContext
from toolrl_testing import PluginContract, make_build_context
from toolrl_testing.fakes import CharTokenizer, FakeChatFormat


class _Weights:
    version = 0

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module

    def module(self) -> torch.nn.Module:
        return self._module

    def state_dict(self) -> dict[str, torch.Tensor]:
        return dict(self._module.state_dict())

    def path(self) -> Path:
        raise NotImplementedError("the embedded engine takes the module")


class TestContract(PluginContract):
    plugin = "transformers"

    def build_context(self, kind: str, name: str, tmp_path: Path) -> BuildContext:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=300,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
            initializer_range=0.2,
        )
        module = transformers.LlamaForCausalLM(config)
        return make_build_context(
            name,
            run_dir=tmp_path,
            tokenizer=CharTokenizer(),
            chat_format=FakeChatFormat(),
            weights=_Weights(module),
            dtype=torch.float32,
        )
