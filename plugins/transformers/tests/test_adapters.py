"""A model with a LoRA adapter: the shorter pass equals the module's, and a copy is of the adapter alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

from toolrl.types import Sampling
from toolrl_plugin_transformers.check import verify
from toolrl_plugin_transformers.model import ModelRunner

peft = pytest.importorskip("peft", reason="adapters need peft")


def adapted(build: Any, config: Any, *, dtype: torch.dtype = torch.float32, **settings: Any) -> Any:
    """A model with an adapter that isn't zero."""
    options = peft.LoraConfig(**{"r": 4, "target_modules": "all-linear", **settings})
    wrapped = peft.get_peft_model(build(config).to(dtype), options, autocast_adapter_dtype=False)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return wrapped.get_base_model().eval()


def config(sizes: dict[str, Any], **changes: Any) -> Any:
    return transformers.Qwen3Config(**{**sizes, "head_dim": 8, "tie_word_embeddings": True, **changes})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_the_shorter_pass_equals_the_module(
    build: Any, sizes: Any, both_passes: Any, dtype: torch.dtype, targets: Any
) -> None:
    module = adapted(build, config(sizes), dtype=dtype, target_modules=targets, lora_alpha=6)
    found = both_passes(module)
    with torch.no_grad():
        plain = module(torch.tensor([[1, 2, 3]])).logits[0, -1].float()
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert (found[0] - found[1]).abs().max() <= tolerance * found[1].abs().max()
    assert (found[0][0, 0] - plain).abs().max() <= tolerance * found[1].abs().max()
    verify(ModelRunner(module))


def test_adapters_of_another_kind_go_through_the_module(build: Any, sizes: Any) -> None:
    """And what is done to an adapter later is noticed."""
    assert ModelRunner(adapted(build, config(sizes), use_dora=True)).direct is None
    assert ModelRunner(adapted(build, config(sizes), lora_dropout=0.1)).direct is None
    assert ModelRunner(adapted(build, config(sizes), target_modules=["embed_tokens"])).direct is None
    module = adapted(build, config(sizes))
    direct = ModelRunner(module).direct
    assert direct is not None
    layer = module.model.layers[0].mlp.up_proj
    layer.enable_adapters(False)
    assert not direct.usable
    layer.enable_adapters(True)
    assert direct.usable
    layer.merge()
    assert not direct.usable
    layer.unmerge()
    handle = layer.lora_A["default"].register_forward_hook(lambda *_: None)
    assert not direct.usable
    handle.remove()
    assert direct.usable


async def test_weights_of_its_own_are_the_adapter_alone(
    build: Any, sizes: Any, engine: Any, weights: Any, plain_logprobs: Any
) -> None:
    module = adapted(build, config(sizes))

    async with engine(module, overlap=True) as running:
        own = running._started().batch.runner.module
        live = dict(module.named_parameters())
        for name, parameter in own.named_parameters():
            assert (parameter is live[name]) == ("lora_" not in name), name
        old = await running.generate([1, 2, 3], Sampling(6, seed=1), session="a")
        wanted = plain_logprobs(module, [1, 2, 3], old.ids)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if "lora_" in name:
                    parameter.mul_(1.5)
        still = await running.generate([1, 2, 3], Sampling(6, seed=1), session="b")
        await running.update_weights(weights(module), 1)
        new = await running.generate([1, 2, 3], Sampling(6, seed=1), session="c")
    assert old.logprobs == pytest.approx(wanted, abs=1e-4)
    assert still.logprobs == pytest.approx(wanted, abs=1e-4), "the trainer's steps show after an update only"
    assert new.logprobs == pytest.approx(plain_logprobs(module, [1, 2, 3], new.ids), abs=1e-4)
    assert new.logprobs != pytest.approx(wanted, abs=1e-2)
