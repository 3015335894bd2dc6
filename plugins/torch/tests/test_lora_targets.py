"""Layers that get an addition: every linear one by default, also beside experts, and all that a list names."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models

from toolrl.errors import ConfigError
from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration

peft = pytest.importorskip("peft", reason="adapters need peft: pip install toolrl[lora]")

BATCH = [Demonstration((5, 6, 7, 8, 9, 10), (0, 0, 1, 1, 0, 1)), Demonstration((5, 6, 7, 6), (0, 0, 1, 1))]
ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
LATENT = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}
MLP = {"gate_proj", "up_proj", "down_proj"}
EXPERTS = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {**EXPERTS, "n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1,
          "topk_group": 1}  # fmt: skip
MLA = {**ROUTED, "num_key_value_heads": 4, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4,
       "qk_nope_head_dim": 4, "v_head_dim": 8}  # fmt: skip

FAMILIES: dict[str, tuple[dict[str, Any], set[str], tuple[str, ...]]] = {
    "Qwen3Moe": ({**EXPERTS, "num_experts": 4}, ATTENTION, ("Qwen3MoeExperts", "Qwen3MoeTopKRouter")),
    "Qwen2Moe": (
        {**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24},
        {*ATTENTION, *MLP, "shared_expert_gate"},
        ("Qwen2MoeExperts", "Qwen2MoeTopKRouter"),
    ),
    "Mixtral": (LOCAL, ATTENTION, ("MixtralExperts", "MixtralTopKRouter")),
    "Olmoe": ({"num_experts": 4, "num_experts_per_tok": 2}, ATTENTION, ("OlmoeExperts", "OlmoeTopKRouter")),
    "DeepseekV2": (MLA, LATENT, ("DeepseekV2Experts", "DeepseekV2TopkRouter", *MLP)),
    "DeepseekV3": (MLA, LATENT, ("DeepseekV3Experts", "DeepseekV3TopkRouter", *MLP)),
    "GptOss": ({**LOCAL, "head_dim": 8}, ATTENTION, ("GptOssExperts", "GptOssTopKRouter")),
    "GraniteMoe": (LOCAL, ATTENTION, ("GraniteMoeExperts", "GraniteMoeTopKRouter")),
    "Phimoe": (
        {**LOCAL, "router_jitter_noise": 0.0, "input_jitter_noise": 0.0},
        ATTENTION,
        ("PhimoeExperts", "PhimoeTopKRouter"),
    ),
    "Glm4Moe": ({**ROUTED, "head_dim": 8}, ATTENTION, ("Glm4MoeExperts", "Glm4MoeTopkRouter", *MLP)),
    "Ernie4_5_Moe": (
        {**EXPERTS, "moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_layer_start_index": 1},
        ATTENTION,
        ("Ernie4_5_MoeExperts", "Ernie4_5_MoeTopKRouter", *MLP),
    ),
    "Llama4Text": (
        {"head_dim": 8, "intermediate_size_mlp": 48, **LOCAL, "num_experts_per_tok": 1, "moe_layers": [1]},
        {*ATTENTION, *MLP},
        ("Llama4TextExperts", "Llama4Router"),
    ),
    "Falcon": ({"num_kv_heads": 2}, {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}, ()),
    "Jamba": (
        {"num_experts": 4, "mamba_d_state": 4, "mamba_d_conv": 2, "attn_layer_period": 2, "attn_layer_offset": 1,
         "expert_layer_period": 2, "expert_layer_offset": 1},
        {*ATTENTION, *MLP, "in_proj", "x_proj", "out_proj"},
        ("JambaExperts", "JambaTopKRouter", "dt_proj"),
    ),
}  # fmt: skip
"""By family: sizes of a small model, last names of the layers that get an addition, and what is said of the rest."""


def save(tiny: Any, folder: Path, family: str) -> Path:
    """A random model's folder, with a tokenizer."""
    torch.manual_seed(0)
    settings = {**tiny.shape, **FAMILIES[family][0]}
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{family}Config")(**settings))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(4.0)
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{number}": number for number in range(tiny.vocabulary)}, "w3"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="w0").save_pretrained(folder)
    return folder


def plain(folder: Any) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_default_trains_what_it_can_and_says_once_what_it_leaves(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, family: str
) -> None:
    _, layers, left = FAMILIES[family]
    folder = save(tiny, tmp_path / "model", family)
    with caplog.at_level(logging.WARNING):
        policy = tiny.load(folder, {"rank": 2})
    said = [record.getMessage() for record in caplog.records if "no addition" in record.getMessage()]
    assert len(said) == bool(left)
    assert all(part in said[0] and "%" in said[0] for part in left)
    before = {name: tensor.clone() for name, tensor in policy.adapter.state_dict().items()}
    assert {name.partition(".lora_")[0].rpartition(".")[2] for name in before} == layers

    trainer = tiny.fine_tuner(tmp_path, policy, learning_rate=1e-2)
    for _ in range(2):
        trainer.update(BATCH)
    after = policy.adapter.state_dict()
    # An addition that the model doesn't compute has no gradient, and stays as it was drawn.
    assert all(not tensor.equal(before[name]) for name, tensor in after.items())

    wanted = tiny.logits(policy.model.eval())
    assert not torch.allclose(tiny.logits(plain(folder)), wanted, atol=1e-3)
    weights = policy.weights(1)
    assert torch.allclose(tiny.logits(plain(weights.path())), wanted, atol=1e-5)
    weights.close()
    written = tmp_path / "adapter"
    written.mkdir()
    policy.adapter.save_pretrained(written)
    assert torch.allclose(tiny.logits(peft.PeftModel.from_pretrained(plain(folder), written)), wanted, atol=1e-5)
    assert torch.allclose(tiny.logits(tiny.load(written).model.eval()), wanted, atol=1e-5)
    assert torch.allclose(tiny.logits(tiny.load(written, {"rank": 2}).model.eval()), wanted, atol=1e-5)


def test_a_model_that_gets_additions_everywhere_says_nothing(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny.load(tiny.save(tmp_path / "model"), {"rank": 2})
    assert "no addition" not in caplog.text


@pytest.mark.parametrize(
    ("family", "targets", "problem"),
    [
        ("Mixtral", ["q_proj", "gate_up_proj"], r"'gate_up_proj' names no layer .*tensor"),
        ("Mixtral", ["q_proj", "w1"], r"'w1' names no layer .*experts"),
        ("Mixtral", ["q_proj", "gate"], r"class MixtralTopKRouter"),
        ("Mixtral", ["q_proj", "v_prjo"], r"'v_prjo' names no layer"),
        ("Mixtral", ["q_proj", "layers.7.self_attn.q_proj"], r"'layers.7.self_attn.q_proj' names no layer"),
        ("Mixtral", ["q_proj", "all-linear"], r"'all-linear' names no layer"),
        ("DeepseekV3", ["o_proj", "down_proj"], r"down_proj.*means the experts"),
        ("Llama4Text", ["q_proj", "router"], r"class Llama4Router"),
        ("Mixtral", "q_proj", r"matches no layer's whole path"),
        ("Mixtral", r".*self_attn\.(q|k)_prjo", r"matches no layer's whole path"),
        ("Mixtral", r".*", r"additions are made to linear layers only"),
    ],
)
def test_an_entry_without_effect_is_refused(tiny: Any, tmp_path: Path, family: str, targets: Any, problem: str) -> None:
    folder = save(tiny, tmp_path / "model", family)
    with pytest.raises(ConfigError, match=rf"model\.lora\.target_modules: .*{problem}") as caught:
        tiny.load(folder, {"target_modules": targets})
    assert caught.value.hint


def test_an_expression_takes_the_layers_that_it_matches_and_no_others(tiny: Any, tmp_path: Path) -> None:
    policy = tiny.load(save(tiny, tmp_path / "model", "Qwen3Moe"), {"target_modules": r".*layers\.1\..*[qk]_proj"})
    names = {name.partition(".lora_")[0].partition("layers.")[2] for name in policy.adapter.state_dict()}
    assert names == {"1.self_attn.q_proj", "1.self_attn.k_proj"}
