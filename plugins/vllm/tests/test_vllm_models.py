"""Families of models: after each weight update vLLM computes what the trainer computes, with tied embeddings, separate
output layers, biases and experts alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from vllm_help import Weights, apart, ask, change, logprobs_of, make_family, make_model, needs_vllm

from toolrl.errors import EngineError
from toolrl.types import Sampling

pytestmark = [needs_vllm, pytest.mark.timeout(600)]

PROMPT = tuple(range(40, 100))
TOLERANCE = 1e-4
FAMILIES = [
    ("qwen3", True),
    ("qwen3", False),
    ("qwen3_moe", False),
    ("llama", False),
    ("llama", True),
    ("qwen2", True),
    ("qwen2", False),
]
SETTINGS = [
    Sampling(16, temperature=1.0, seed=1),
    Sampling(16, temperature=0.6, top_p=0.8, seed=2),
    Sampling(16, temperature=1.6, top_k=7, min_p=0.05, seed=3),
    Sampling(16, temperature=0.0),
]


@pytest.mark.parametrize(("family", "tied"), FAMILIES)
async def test_log_probabilities_are_the_trainers_after_each_update(
    engine: Any, tokenizer: Any, tmp_path: Path, family: str, tied: bool
) -> None:
    module = make_family(family, tied=tied)
    assert (module.lm_head.weight is module.model.embed_tokens.weight) == tied
    assert (module.model.layers[0].self_attn.q_proj.bias is not None) == (family == "qwen2")
    async with engine(module) as running:
        for version in range(4):
            if version:
                change(module, version)
                await running.update_weights(Weights(module, tokenizer, tmp_path / "w", version), version)
            assert running.verified < TOLERANCE
            done = await ask(running, PROMPT, SETTINGS)
            for one, generation in zip(SETTINGS, done, strict=True):
                wanted = logprobs_of(module, PROMPT, generation.ids, one.temperature or 1.0)
                apart = max(abs(a - b) for a, b in zip(generation.logprobs, wanted, strict=True))
                assert apart < TOLERANCE, (version, one)
                assert set(generation.versions) == {version}


@pytest.mark.parametrize(("family", "tied"), FAMILIES)
async def test_an_update_that_loses_any_tensor_is_caught(
    engine: Any, tokenizer: Any, tmp_path: Path, family: str, tied: bool
) -> None:
    """Each tensor once is what it was before the update, which is what a load that passes over a name leaves."""

    import torch

    from toolrl_plugin_torch.policy import checkpoint_tensors

    module = make_family(family, tied=tied)
    async with engine(module) as running:
        names = [name for name, _ in module.named_parameters()]
        for version, lost in enumerate(names, 1):
            kept = {name: tensor.clone() for name, tensor in module.state_dict().items()}
            chance = torch.Generator().manual_seed(version)
            with torch.no_grad():
                parameter = module.get_parameter(lost)
                # Not all by the same: a softmax doesn't see that.
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=chance))

            class Lossy(Weights):
                def tensors(self, *, merged: bool = True, kept: Any = kept) -> Any:
                    return checkpoint_tensors(module, kept)

            with pytest.raises(EngineError, match=f"after the update to version {version} vLLM doesn't have"):
                await running.update_weights(Lossy(module, tokenizer, tmp_path / "w", version), version)
            # The right weights are taken all the same, so that the next round begins from what is right.
            await running.update_weights(Weights(module, tokenizer, tmp_path / "w", version), version)
        assert len(names) >= 20


@pytest.mark.parametrize("tied", [True, False])
async def test_a_16_bit_models_head_computes_in_float32_also_after_an_update(
    engine: Any, tokenizer: Any, tmp_path: Path, tied: bool
) -> None:
    """The trainer's does, and logits rounded to 16 bits alone would move log-probabilities further than all layers."""
    import torch

    module = make_model(dtype=torch.bfloat16, tied=tied)
    with torch.no_grad():
        # Logits so large that their rounding shows, and what is sampled isn't certain: a tied head repeats its input.
        module.model.norm.weight.fill_(1.0 if tied else 8.0)
        for layer in module.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    wide = module.lm_head.register_forward_hook(
        lambda head, given, _: torch.nn.functional.linear(given[0].float(), head.weight.float())
    )
    found = []
    for dtype in ("model", "float32"):
        options = {"engine_args": {"hf_overrides": {"head_dtype": "model"}}} if dtype == "model" else {}
        async with engine(module, tolerance=10.0, **options) as running:
            await running.update_weights(Weights(module, tokenizer, tmp_path / "w", 1), 1)
            done = await ask(running, PROMPT, [Sampling(16, temperature=2.0, seed=n) for n in range(4)])
            found.append(max(apart(module, PROMPT, one, 2.0) for one in done))
    wide.remove()
    assert found[1] < found[0] / 4, found
