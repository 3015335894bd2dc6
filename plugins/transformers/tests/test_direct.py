"""The shorter forward pass: equal to the module's, used where it fits and nowhere else."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import EngineError
from toolrl_plugin_transformers import check as check_module
from toolrl_plugin_transformers import direct
from toolrl_plugin_transformers.cache import SlotCache
from toolrl_plugin_transformers.check import verify
from toolrl_plugin_transformers.direct import Direct
from toolrl_plugin_transformers.model import ModelRunner

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def _configs(sizes: dict[str, Any]) -> dict[str, Any]:
    t = transformers
    scaled = {**LLAMA3, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    return {
        "qwen3": t.Qwen3Config(**sizes, head_dim=16),
        "qwen2": t.Qwen2Config(**sizes, tie_word_embeddings=True),
        "llama": t.LlamaConfig(**sizes, attention_bias=True, mlp_bias=True),
        "llama one key head": t.LlamaConfig(**{**sizes, "num_key_value_heads": 1}, rope_parameters=scaled),
        "llama all key heads": t.LlamaConfig(**{**sizes, "num_key_value_heads": 4}),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", list(_configs({})))
def test_it_equals_the_module(name: str, dtype: torch.dtype, build: Any, sizes: Any, both_passes: Any) -> None:
    module = build(_configs(sizes)[name]).to(dtype)
    found = both_passes(module)
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert (found[0] - found[1]).abs().max() <= tolerance * found[1].abs().max()
    runner = ModelRunner(module)
    verify(runner)
    assert runner.direct is not None, "right with a beginning that is read once, too"


@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_logits_of_bfloat16_models_are_float32(name: str, build: Any, sizes: Any) -> None:
    shape = {"vocab_size": 300, "n_embd": 32, "n_layer": 2, "n_head": 4}
    config = transformers.GPT2Config(**shape) if name == "gpt2" else _configs(sizes)[name]
    module = build(config).bfloat16()
    head, given = module.get_output_embeddings(), []
    runner = ModelRunner(module)
    for use in (True, False):
        runner.direct = runner.direct if use else None
        runner.enter()
        slots = SlotCache(runner.shape, 1 << 20)
        slots.reserve(2, 40, used=0)
        with torch.no_grad():
            got = runner.prefill(slots, 0, [[1, 2, 3]], [0])
            given.append(module.base_model(torch.tensor([[1, 2, 3]]))[0][:, -1].float() @ head.weight.float().t())
        runner.leave()
        assert got.dtype == torch.float32
        # Hidden states of two ways differ by rounding; rounded logits would be few different numbers.
        assert (got - got.bfloat16().float()).abs().max() > 0
        assert (got - given[0]).abs().max() <= 0.05 * given[0].abs().max()


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, torch.bfloat16) for name in _configs({})), ("qwen3", torch.float16)]
)
def test_a_right_model_in_16_bits_passes_and_a_layer_left_out_does_not(
    name: str, dtype: torch.dtype, build: Any, sizes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = build(_configs(sizes)[name]).to(dtype)
    runner = ModelRunner(module)
    verify(runner)
    assert runner.direct is not None, "the shorter pass is right, too"
    right = check_module._slot_loop
    for layer in module.model.layers:
        weight = layer.self_attn.o_proj.weight

        def wrong(*args: Any, weight: Any = weight) -> torch.Tensor:
            before = weight.detach().clone()
            weight.zero_()
            try:
                return right(*args)
            finally:
                weight.copy_(before)

        monkeypatch.setattr(check_module, "_slot_loop", wrong)
        with pytest.raises(EngineError, match="four fifths"):
            verify(runner)


def test_it_is_left_out_where_it_does_not_fit(build: Any, sizes: Any) -> None:
    t = transformers
    unlike = [
        t.LlamaConfig(**sizes, attn_implementation="eager"),
        t.LlamaConfig(**sizes, hidden_act="gelu"),
        t.Qwen2Config(**sizes, use_sliding_window=True, sliding_window=6, max_window_layers=1),
        t.MistralConfig(**sizes),
        t.LlamaConfig(**sizes, rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}),
    ]
    assert [Direct.of(build(config)) for config in unlike] == [None] * len(unlike)

    class Other(transformers.LlamaForCausalLM):
        """May do anything in its forward."""

    assert Direct.of(Other(t.LlamaConfig(**sizes))) is None


def test_hooks_and_replaced_parts_are_not_passed_by(build: Any, sizes: Any) -> None:
    module = build(transformers.LlamaConfig(**sizes))
    found = Direct.of(module)
    assert found is not None
    assert found.usable
    handle = module.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert not found.usable
    handle.remove()
    assert found.usable

    class LowRank(torch.nn.Linear):
        """An adapter around a layer."""

    module.model.layers[0].self_attn.q_proj = LowRank(32, 32, bias=False)
    assert not found.usable


def test_where_it_is_wrong_the_module_is_used(
    build: Any, sizes: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = build(transformers.LlamaConfig(**sizes))
    monkeypatch.setattr(direct, "_norm", lambda x, module: x)
    runner = ModelRunner(module)
    with caplog.at_level(logging.WARNING):
        assert verify(runner) < 1e-4
    assert runner.direct is None
    assert "the module itself is used" in caplog.text
