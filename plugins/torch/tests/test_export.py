"""A checkpoint as a plain model folder: bit for bit what was trained, a whole folder or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from toolrl.errors import CheckpointError
from toolrl_plugin_torch.checkpoints.export import export_model
from toolrl_plugin_torch.options import ModelConfig
from toolrl_plugin_torch.policy import load_policy


@pytest.fixture
def checkpoint(tiny: Any, tmp_path: Path) -> Path:
    """A whole model's."""
    folder = tmp_path / "step-000001"
    tiny.save(folder, "qwen3")
    (folder / "trainer").mkdir()
    (folder / "trainer" / "state.pt").write_bytes(b"state")
    (folder / "manifest.json").write_text("{}")
    return folder


def test_of_a_whole_model_what_a_run_needs_is_left_out(checkpoint: Path, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "model"
    export_model(str(checkpoint), target)
    names = {path.name for path in target.iterdir()}
    assert names == {path.name for path in checkpoint.iterdir()} - {"trainer", "manifest.json"}
    assert (target / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["model"]


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["whole", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_bfloat16_model_is_exported_in_bfloat16(tiny: Any, tmp_path: Path, dtype: str, lora: Any) -> None:
    """Whatever it was trained in, and over several runs."""
    first, target = tmp_path / "first", tmp_path / "model"
    tiny.save(first, "qwen3", dtype="bfloat16")
    source = first
    for run in range(2):
        config = ModelConfig(path=str(source), dtype=dtype, lora=lora if run else None)
        policy = load_policy(config, str(source), torch.device("cpu"))
        with torch.no_grad():
            for number, parameter in enumerate(policy.model.parameters()):
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) * 0.01)
        source = tmp_path / f"run-{run}"
        source.mkdir()
        policy.save_trained(source, "the test")
    export_model(str(source), target)
    plain = transformers.AutoModelForCausalLM.from_pretrained(target, dtype="auto")
    assert {tensor.dtype for tensor in plain.state_dict().values()} == {torch.bfloat16}
    wanted = policy.state_dict()
    for name, value in plain.state_dict().items():
        assert value.equal(wanted[name].bfloat16()), name
    assert "toolrl" not in (target / "config.json").read_text()
    assert (target / "model.safetensors").stat().st_size < 1.2 * (first / "model.safetensors").stat().st_size


def test_a_failure_leaves_nothing(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(CheckpointError, match="the model can't be written: OSError: .*No space left"):
        export_model(str(checkpoint), tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == [checkpoint.name]
