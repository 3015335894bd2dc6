"""Loading a policy, and its weights as engines take them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import ConfigError
from toolrl_plugin_torch import device
from toolrl_plugin_torch.device import pick_device, pick_dtype
from toolrl_plugin_torch.options import ModelConfig
from toolrl_plugin_torch.policy import PolicyWeights, load_policy


@pytest.fixture
def folder(tmp_path: Path) -> str:
    from tokenizers import Tokenizer, models

    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")), eos_token="b"
    )
    config = transformers.GPT2Config(
        vocab_size=8, n_embd=8, n_layer=1, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=1
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return str(tmp_path)


def load(folder: str, **fields: Any) -> Any:
    return load_policy(ModelConfig(path=folder, **fields), folder, torch.device("cpu"))


def test_a_policy_has_no_dropout(folder: str) -> None:
    policy = load(folder)
    rates = [module.p for module in policy.model.modules() if isinstance(module, torch.nn.Dropout)]
    assert rates
    assert not any(rates)
    assert policy.max_positions == 32
    assert policy.dtype == torch.float32


def test_dtype_and_device() -> None:
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    assert pick_dtype("bfloat16", torch.device("cpu")) == torch.bfloat16
    with pytest.raises(ConfigError, match="'tpu9000' is no device"):
        pick_device("tpu9000")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="sees no CUDA device"):
            pick_device("cuda:0")


@pytest.mark.parametrize("able", [True, False])
def test_on_a_cpu_auto_is_what_the_files_hold_where_it_multiplies_that(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, able: bool
) -> None:
    monkeypatch.setattr(device, "multiplies_bfloat16", lambda: able)
    assert load(folder).dtype == torch.float32, "the files hold float32"
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.bfloat16)
    model.save_pretrained(folder)
    policy = load(folder)
    assert policy.dtype == next(policy.model.parameters()).dtype == (torch.bfloat16 if able else torch.float32)
    policy.model.save_pretrained(tmp_path / "trained")
    policy.tokenizer.save_pretrained(tmp_path / "trained")
    monkeypatch.setattr(device, "multiplies_bfloat16", lambda: True)
    assert load(str(tmp_path / "trained")).dtype == policy.dtype, "a run goes on in its own type"


def test_weights_are_written_once_and_deleted(folder: str, tmp_path: Path) -> None:
    policy = load(folder)
    weights = PolicyWeights(policy, 3, tmp_path)
    path = weights.path()
    assert path == weights.path()
    again = transformers.AutoModelForCausalLM.from_pretrained(path).state_dict()
    assert all(torch.equal(again[name], value) for name, value in weights.tensors())
    assert weights.module() is policy.model
    weights.close()
    assert not path.exists()


def test_tensors_have_the_names_and_shapes_that_a_checkpoint_has(tmp_path: Path) -> None:
    """transformers merges the experts of a layer when it loads a checkpoint."""
    from safetensors.torch import load_file

    from toolrl_plugin_torch.policy import checkpoint_tensors

    config = transformers.Qwen3MoeConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, moe_intermediate_size=8, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_experts=4, num_experts_per_tok=2,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path)
    written, given = load_file(tmp_path / "model.safetensors"), dict(checkpoint_tensors(model, model.state_dict()))
    assert written.keys() == given.keys()
    assert all(written[name].equal(given[name]) for name in written)
