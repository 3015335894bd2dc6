"""Adapters that others wrote, or that were damaged: what isn't understood is refused by name, nothing is unpickled."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.assembly import model_source
from toolrl.errors import ConfigError, ToolrlError
from toolrl.loop.checkpoints import _write_manifest

peft = pytest.importorskip("peft", reason="adapters need peft: pip install toolrl[lora]")

TARGETS = ["q_proj", "v_proj"]
LORA = {"rank": 4, "alpha": 8, "target_modules": TARGETS}


@pytest.fixture
def model(tiny: Any, tmp_path: Path) -> Path:
    return tiny.save(tmp_path / "model")  # type: ignore[no-any-return]


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Callable[..., Path]:
    """Makes an adapter as another program would, with settings of peft, and changes its config's text afterwards."""

    def make(changes: dict[str, Any] | None = None, **settings: Any) -> Path:
        options: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "task_type": "CAUSAL_LM"}
        base = transformers.AutoModelForCausalLM.from_pretrained(model)
        wrapped = peft.get_peft_model(base, peft.LoraConfig(**options | settings))
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in wrapped.parameters():
                if parameter.requires_grad:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
        folder = tmp_path / "adapter"
        wrapped.save_pretrained(folder)
        config = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(config | (changes or {})))
        return folder

    return make


def of_peft(tiny: Any, folder: Path, model: Path) -> torch.Tensor:
    return tiny.logits(peft.PeftModel.from_pretrained(transformers.AutoModelForCausalLM.from_pretrained(model), folder))


def test_a_plain_adapter_of_another_program_is_trained_on(tiny: Any, adapter: Callable[..., Path], model: Path) -> None:
    folder = adapter()
    assert torch.allclose(tiny.logits(tiny.load(folder, LORA).model), of_peft(tiny, folder, model), atol=1e-5)


@pytest.mark.parametrize("settings", [{"alpha_pattern": {"q_proj": 64}}, {"init_lora_weights": "pissa"}])
def test_the_same_tensors_with_another_meaning_are_refused_and_can_be_merged(
    tiny: Any, adapter: Callable[..., Path], model: Path, settings: dict[str, Any]
) -> None:
    folder = adapter(**settings)
    with pytest.raises(ToolrlError, match=next(iter(settings))) as caught:
        tiny.load(folder, LORA)
    assert "leave model.lora out" in str(caught.value)
    assert torch.allclose(tiny.logits(tiny.load(folder).model), of_peft(tiny, folder, model), atol=1e-4)


class _Bomb:
    def __init__(self, mark: Path) -> None:
        self._mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._mark),)


@pytest.mark.parametrize("lora", [LORA, None])
def test_a_pickle_is_not_read(
    tiny: Any, adapter: Callable[..., Path], tmp_path: Path, lora: dict[str, Any] | None
) -> None:
    folder = adapter()
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(_Bomb(tmp_path / "mark")))
    with pytest.raises(ToolrlError, match=r"holds no adapter_model\.safetensors") as caught:
        tiny.load(folder, lora)
    assert "adapter_model.bin isn't read" in str(caught.value)
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"r": 16},
        {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4},
        {"target_modules": ["k_proj", "o_proj"]},
        {"target_modules": ["q_proj"]},
    ],
)
def test_a_config_that_is_not_that_of_the_weights_is_refused(
    tiny: Any, adapter: Callable[..., Path], changes: dict[str, Any]
) -> None:
    folder = adapter(changes)
    with pytest.raises(ConfigError, match=r"can't be merged into its model") as caught:
        tiny.load(folder)
    assert caught.value.where == str(folder)
    assert len(str(caught.value)) < 1500


def test_an_adapter_on_an_adapter_is_refused(tiny: Any, adapter: Callable[..., Path], tmp_path: Path) -> None:
    folder = adapter({"base_model_name_or_path": str(tmp_path / "adapter")})
    for lora in (LORA, None):
        with pytest.raises(ConfigError, match=r"is an adapter itself"):
            tiny.load(folder, lora)


def test_a_torn_checkpoint_is_not_taken_by_its_own_path_either(model: Path) -> None:
    _write_manifest(model, 1)
    assert model_source(str(model)) == str(model)
    file = model / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ToolrlError, match=r"model\.safetensors has \d+ bytes"):
        model_source(str(model))


@pytest.mark.parametrize(
    "settings",
    [
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"]},
        {"modules_to_save": ["embed_tokens", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["q_proj", "lm_head"]},
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"trainable_token_indices": [5, 6]},
        {"modules_to_save": ["norm"]},
    ],
    ids=str,
)
def test_a_tied_head_is_merged_as_peft_computes_it(
    tiny: Any, adapter: Callable[..., Path], model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Head and input embeddings share a weight, and an adapter may change one of the two."""
    folder = adapter(**settings)
    wanted = of_peft(tiny, folder, model)
    policy = tiny.load(folder)
    assert torch.allclose(tiny.logits(policy.model), wanted, atol=1e-4)
    policy.save_whole(tmp_path / "merged")
    merged = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert torch.allclose(tiny.logits(merged), wanted, atol=1e-4)
    one = merged.get_input_embeddings().weight is merged.get_output_embeddings().weight
    assert one == merged.get_input_embeddings().weight.equal(merged.get_output_embeddings().weight)


def test_a_head_of_its_own_has_the_precision_of_the_model(
    tiny: Any, adapter: Callable[..., Path], tmp_path: Path
) -> None:
    folder = adapter(modules_to_save=["lm_head"])
    policy = tiny.load(folder, dtype="bfloat16")
    assert {parameter.dtype for parameter in policy.model.parameters()} == {torch.bfloat16}
