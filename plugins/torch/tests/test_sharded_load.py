"""Ranks that load a model in shards have the weights of one process that loads it whole, in all that they hand over."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import ConfigError
from toolrl.loop.ranks import ONE

RANK = Path(__file__).with_name("sharded_rank.py")
EXPERTS: dict[str, Any] = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 8, "n_shared_experts": 1,
}  # fmt: skip


def save_experts(tiny: Any, folder: Path) -> None:
    """In bfloat16, with a float32 buffer, which a router adds, and experts that are stored one by one."""
    config = tiny.shape | EXPERTS | {"num_key_value_heads": 4}
    torch.manual_seed(0)
    model = transformers.DeepseekV3ForCausalLM(transformers.DeepseekV3Config(**config)).bfloat16()
    model.model.layers[1].mlp.gate.e_score_correction_bias = torch.tensor([0.1001, -0.2002, 0.3003, 0.0004])
    model.save_pretrained(folder)


@pytest.mark.parametrize(
    ("family", "dtype", "lora", "size"),
    [
        ("qwen3", "float32", False, 2),
        ("experts", "bfloat16", False, 2),
        ("llama", "bfloat16", True, 2),
        pytest.param("qwen3", "float32", False, 4, marks=pytest.mark.slow),
    ],
)
def test_ranks_have_the_weights_of_one_process(
    tiny: Any, beside: Any, on_ranks: Any, tmp_path: Path, family: str, dtype: str, lora: bool, size: int
) -> None:
    tiny.save(tmp_path / "model", "llama" if family == "experts" else family, dtype=dtype)
    if family == "experts":
        save_experts(tiny, tmp_path / "model")
    on_ranks(size, [sys.executable, str(RANK), str(tmp_path), dtype, "lora" if lora else "whole"])
    ours = torch.load(tmp_path / "found.pt", weights_only=False)
    one = beside("sharded_rank").work(tmp_path / "model", dtype, lora, ONE, tmp_path / "one")
    stored = {}
    for file in (tmp_path / "model").glob("*.safetensors"):
        stored |= transformers.modeling_utils.load_state_dict(str(file))
    assert ours["before"].keys() == stored.keys()
    assert all(value.equal(stored[name]) for name, value in ours["before"].items()), "as the files have them"
    assert ours["buffers"].keys() == one["buffers"].keys()
    assert all(value.equal(one["buffers"][name]) for name, value in ours["buffers"].items())
    assert ours["shares"] == one["shares"]
    assert ours["bytes"] > one["bytes"] // 2
    close = 1e-5 if dtype == "float32" else 1e-2
    assert ours["loss"] == pytest.approx(one["loss"], rel=1e-6 if dtype == "float32" else 1e-2)
    assert ours["probe"].ids == one["probe"].ids
    assert (ours["probe"].rounding is None) == (dtype == "float32")
    assert max(abs(a - b) for a, b in zip(ours["probe"].logprobs, one["probe"].logprobs, strict=True)) < 10 * close
    for kind in ("module", "after"):
        first, second = dict(ours[kind]), dict(one[kind])
        assert first.keys() == second.keys()
        for name, value in first.items():
            assert value.dtype == second[name].dtype
            assert torch.allclose(value.float(), second[name].float(), atol=close), (kind, name)
    assert all("lora_" in name for name in ours["led"]) == lora, "what is frozen isn't gathered"
    written, expected = ({path.name for path in (tmp_path / of / "saved").iterdir()} for of in ("ranks", "one"))
    assert written == expected


def test_quantized_weights_are_refused(tiny: Any, tmp_path: Path) -> None:
    folder = tiny.save(tmp_path / "model", "llama")
    config = folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"quantization_config": {"quant_method": "fp8"},', 1))
    with pytest.raises(ConfigError, match="quantized weights"):
        tiny.load(folder)
