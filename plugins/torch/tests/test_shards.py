"""Optimizer states by torch.distributed.checkpoint: what one optimizer wrote another takes up, or says why not."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from toolrl.errors import CheckpointError
from toolrl.loop.ranks import ONE
from toolrl_plugin_torch.checkpoints.shards import FOLDER, read_shards, write_shards
from toolrl_plugin_torch.optimizer import PolicyOptimizer
from toolrl_plugin_torch.options import OptimizerConfig


def make(dtype: str = "float32", *, width: int = 4, seed: int = 0) -> tuple[Any, PolicyOptimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Linear(width, 3).to(getattr(torch, dtype))
    return model, PolicyOptimizer(model.named_parameters(), OptimizerConfig(learning_rate=0.1))


def update(model: Any, optimizer: PolicyOptimizer) -> None:
    (model(torch.ones(2, model.in_features, dtype=model.weight.dtype)).square().sum()).backward()
    optimizer.step(0.1)


def written(folder: Path, optimizers: dict[str, PolicyOptimizer]) -> Path:
    """A checkpoint of nothing else."""
    checkpoint = folder / "step-000001"
    (checkpoint / FOLDER).parent.mkdir(parents=True)
    write_shards(folder, 1, optimizers, ONE).rename(checkpoint / FOLDER)
    return checkpoint


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_optimizer_goes_on_bit_for_bit(tmp_path: Path, dtype: str) -> None:
    """Weights and masters, averages and steps; also where the other has made no step yet."""
    model, optimizer = make(dtype)
    for _ in range(2):
        update(model, optimizer)
    checkpoint = written(tmp_path, {"policy": optimizer})
    other_model, other = make(dtype, seed=1)
    read_shards(checkpoint, {"policy": other}, ONE)
    for _ in range(2):
        assert all(one.equal(two) for one, two in zip(model.parameters(), other_model.parameters(), strict=True))
        assert all(value.equal(other.tensors()[name]) for name, value in optimizer.tensors().items())
        update(model, optimizer)
        update(other_model, other)


def test_tensors_of_another_model_are_refused(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, {"policy": make()[1]})
    wider = make(width=5)[1]
    before = {name: value.clone() for name, value in wider.tensors().items()}
    with pytest.raises(CheckpointError, match=r"those of another model: policy/exp_avg/weight, .* and 0 more differ"):
        read_shards(checkpoint, {"policy": wider}, ONE)
    assert all(value.equal(before[name]) for name, value in wider.tensors().items())
    with pytest.raises(CheckpointError, match="critic/exp_avg/bias"):
        read_shards(checkpoint, {"policy": make()[1], "critic": make()[1]}, ONE)


class _Code:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("place", ["alone", "in storage_data", "in storage_meta"])
def test_code_in_the_index_of_a_foreign_checkpoint_does_not_run(tmp_path: Path, place: str) -> None:
    checkpoint = written(tmp_path, {"policy": make()[1]})
    file, mark = checkpoint / FOLDER / ".metadata", tmp_path / "mark"
    index = pickle.loads(file.read_bytes())
    if place == "in storage_data":
        index.storage_data["more"] = _Code(mark)
    elif place == "in storage_meta":
        index.storage_meta.modules = [_Code(mark)]
    file.write_bytes(pickle.dumps(_Code(mark) if place == "alone" else index))
    with pytest.raises(CheckpointError, match=r"\.metadata asks for posix\.mkdir"):
        read_shards(checkpoint, {"policy": make()[1]}, ONE)
    assert not mark.exists()


def test_an_index_that_is_none_or_leaves_the_folder_is_refused(tmp_path: Path) -> None:
    checkpoint = written(tmp_path, {"policy": make()[1]})
    file = checkpoint / FOLDER / ".metadata"
    index = pickle.loads(file.read_bytes())
    for part in index.storage_data.values():
        part.relative_path = f"../shards/{part.relative_path}"
    for content in (pickle.dumps(7), b"", b"no pickle", pickle.dumps(index)):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="can't be read"):
            read_shards(checkpoint, {"policy": make()[1]}, ONE)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("a file")
    with pytest.raises(CheckpointError, match="the checkpoint of step 3 can't be written") as caught:
        write_shards(tmp_path / "checkpoints", 3, {"policy": make()[1]}, ONE)
    assert caught.value.where == str(tmp_path / "checkpoints")
