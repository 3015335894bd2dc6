"""The written-out layers give the modules' hidden states and gradients, and are used only where they do."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers

from toolrl_plugin_torch.fused import layer as fused_layer
from toolrl_plugin_torch.fused.model import FusedLayers
from toolrl_plugin_torch.logprob import TokenScorer
from toolrl_plugin_torch.prefixes.sharing import choose
from toolrl_plugin_torch.prefixes.tree import TokenTree, grow
from toolrl_plugin_torch.prefixes.tree_attention import model_inputs, over_trees

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, no groups": ("Llama", {"num_key_value_heads": 4}),
    "llama, one key head": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def build(kind: str = "qwen3", dtype: str = "float64", **more: Any) -> Any:
    """A random model whose norms and biases aren't trivial."""
    family, settings = CONFIGS[kind]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **settings, **more})
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(getattr(torch, dtype)).train()
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.2)
    model.set_attn_implementation("sdpa")
    return model


def draw(chance: torch.Generator, count: int) -> list[int]:
    return torch.randint(97, (count,), generator=chance).tolist()


def small_tree() -> TokenTree:
    """A root, groups of like and of different length, a group within a group, a sequence by itself, single tokens."""
    chance = torch.Generator().manual_seed(1)
    root = draw(chance, 40)
    prompts = [[*root, *draw(chance, 34)], [*root, *draw(chance, 45)]]
    deeper = [*prompts[1], *draw(chance, 40)]
    sequences = [[*prompts[0], *draw(chance, 12)] for _ in range(3)]
    sequences += [[*prompts[1], *draw(chance, count)] for count in (2, 11, 20, 70)]
    sequences += [[*deeper, *draw(chance, 2)] for _ in range(3)]
    sequences.append(draw(chance, 9))
    tree = grow(sequences)
    assert max(node.depth for node in tree.nodes) == 3
    return tree


def both_ways(model: Any, tree: TokenTree, rows: torch.Tensor) -> list[list[torch.Tensor]]:
    """Hidden states and gradients by the modules, and by the layers under test."""
    parameters = [parameter for parameter in model.model.parameters() if parameter.requires_grad]
    found = []
    for fused in (False, True):
        if fused:
            hidden = FusedLayers(model)(tree, rows)
        else:
            with over_trees([model]):
                hidden = model.model(**model_inputs(tree))[0][0].index_select(0, rows)
        weight = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(2), dtype=hidden.dtype)
        found.append([hidden.detach(), *torch.autograd.grad((hidden * weight).sum(), parameters)])
    return found


def apart(one: list[torch.Tensor], other: list[torch.Tensor]) -> float:
    """Greatest difference, relative to the greatest entry of all."""
    scale = max(float(tensor.abs().max()) for tensor in one)
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True)) / scale


@pytest.mark.parametrize("stretch", [7, 1024])
@pytest.mark.parametrize("kind", list(CONFIGS))
def test_hidden_states_and_gradients_are_the_modules(kind: str, stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "_ROWS", stretch)
    tree = small_tree()
    rows = torch.cat([torch.arange(3, tree.positions, 2), torch.tensor([5, 5, 80])])
    one, other = both_ways(build(kind), tree, rows)
    # The norms of both are rounded to float32, and summed in another order.
    assert apart(one, other) < 2e-6
    assert float((one[0] - other[0]).abs().max()) < 1e-5


def test_frozen_weights_get_no_gradient_and_change_none() -> None:
    model = build("qwen2")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("q_proj" in name or "norm" in name or "down_proj" in name)
    tree = small_tree()
    rows = torch.arange(0, tree.positions, 3)
    assert apart(*both_ways(model, tree, rows)) < 1e-6
    FusedLayers(model)(tree, rows).sum().backward()
    assert {name for name, parameter in model.named_parameters() if parameter.grad is not None} == {
        name for name, parameter in model.named_parameters() if parameter.requires_grad
    }


def test_it_is_chosen_in_float32_after_a_trial() -> None:
    for kind in CONFIGS:
        model = build(kind, "float32")
        score = TokenScorer(model)
        assert choose("auto", [score], "trainer.share_prefix")
        assert isinstance(score._fused, FusedLayers)
        assert all(parameter.grad is None for parameter in model.parameters())


def test_what_hangs_on_a_model_is_not_passed_by() -> None:
    model = build(dtype="float32")
    found = FusedLayers.of(model)
    assert found is not None
    assert found.usable
    handle = model.model.layers[1].mlp.register_forward_hook(lambda *_: None)
    assert not found.usable
    handle.remove()
    handle = model.model.layers[0].register_full_backward_hook(lambda *_: None)
    assert not found.usable
    handle.remove()
    assert found.usable
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not found.usable
    for module in model.modules():
        if hasattr(module, "gradient_checkpointing"):
            module.gradient_checkpointing = True
    assert not found.usable

    class LowRank(torch.nn.Linear):
        """An adapter around a layer."""

    model = build(dtype="float32")
    model.model.layers[0].self_attn.q_proj = LowRank(32, 64, bias=False)
    assert FusedLayers.of(model) is None


def test_other_models_and_types_keep_their_modules() -> None:
    for dtype in ("float64", "bfloat16"):
        assert FusedLayers.of(build(dtype=dtype)) is None
    for unlike in ({"attention_dropout": 0.1}, {"hidden_act": "gelu"}, {"attention_bias": True}, {"mlp_bias": True}):
        assert FusedLayers.of(build("llama", "float32", **unlike)) is None
    granite = transformers.GraniteForCausalLM(transformers.GraniteConfig(**SIZES))
    assert FusedLayers.of(granite) is None

    class Other(transformers.LlamaForCausalLM):
        """May do anything in its forward."""

    assert FusedLayers.of(Other(transformers.LlamaConfig(**SIZES))) is None


def wrong(x: torch.Tensor, eps: float) -> Any:
    return x, torch.ones_like(x[..., :1])


def failing(x: torch.Tensor, eps: float) -> Any:
    raise RuntimeError("no such kernel")


def blind(grad: torch.Tensor, normal: torch.Tensor, inverse: torch.Tensor, weight: torch.Tensor) -> Any:
    return grad, torch.full_like(weight, torch.nan)


@pytest.mark.parametrize(
    ("part", "replacement", "why"),
    [
        ("_normalised", wrong, "were off by"),
        ("_normalised", failing, "no such kernel"),
        ("_norm_backward", blind, "were off by nan"),
    ],
)
def test_where_it_is_wrong_the_modules_are_used_with_a_warning(
    part: str, replacement: Any, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused_layer, part, replacement)
    score = TokenScorer(build(dtype="float32"))
    with caplog.at_level(logging.WARNING):
        assert choose("auto", [score], "trainer.share_prefix")
    assert score._fused is None
    assert "go through its own layers" in caplog.text
    assert why in caplog.text
