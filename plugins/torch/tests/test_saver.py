"""Saving a trainer and taking it up again: nothing of it is lost, and what doesn't fit is said."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from toolrl_plugin_torch.fine_tuning.demonstrations import Demonstration
from toolrl_plugin_torch.loop.batches import FixedRows
from toolrl_plugin_torch.loop.saver import Saver, config_digest
from toolrl_plugin_torch.options import SftConfig

BATCH = [Demonstration((5, 6, 7, 8, 9, 10), (0, 0, 1, 1, 0, 1)), Demonstration((9, 8, 7, 6), (0, 1, 1, 1))]
CONFIG = {"trainer": {"learning_rate": 1e-3, "steps": 4}, "sft": None, "run": {"name": "a"}, "seed": 0}


def make_saver(tiny: Any, folder: Path, policy: Any = None, **changes: Any) -> Saver:
    trainer = tiny.fine_tuner(folder, policy or tiny.policy(), learning_rate=1e-2, weight_decay=0.1)
    return Saver(trainer, folder / "checkpoints", 2, FixedRows(2), changes.get("config", CONFIG))


@pytest.mark.parametrize("lora", [None, {"rank": 4}], ids=["whole", "adapter"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_restored_trainer_goes_on_bit_for_bit(tiny: Any, tmp_path: Path, dtype: str, lora: Any) -> None:
    """Weights, master weights, both averages of AdamW, the step, and every random generator."""
    if lora:
        pytest.importorskip("peft")
    model = tiny.save(tmp_path / "model", dtype=dtype)
    first = make_saver(tiny, tmp_path, tiny.load(model, lora, dtype=dtype))
    for _ in range(2):
        first.trainer.update(BATCH)
    random.seed(5)
    torch.manual_seed(5)
    path = first.save()
    assert (path.name, first.last_step) == ("step-000002", 2)
    names = {"tokenizer.json", "manifest.json"}
    names |= {"adapter_config.json", "adapter_model.safetensors"} if lora else {"config.json", "model.safetensors"}
    assert names <= {file.name for file in path.iterdir()}
    assert lora is None or not (path / "model.safetensors").exists()
    drawn = (random.random(), torch.rand(()).item())

    second = make_saver(tiny, tmp_path, tiny.load(model, lora, dtype=dtype))
    module = second.trainer.policy.model
    held = dict(module.named_parameters())
    with torch.no_grad():
        for parameter in held.values():
            if parameter.requires_grad:
                parameter.add_(1.0)
    assert second.restore() == 2
    assert (second.trainer.step, second.last_step) == (2, 2)
    assert (random.random(), torch.rand(()).item()) == drawn
    assert all(held[name] is parameter for name, parameter in module.named_parameters()), "an engine shares them"
    for _ in range(2):
        first.trainer.update(BATCH)
        second.trainer.update(BATCH)
        others = dict(first.trainer.policy.model.named_parameters())
        assert all(parameter.equal(others[name]) for name, parameter in held.items())


@pytest.mark.parametrize(("before", "now", "told"), [(8, 8, False), (8, 9, True), (None, 9, False)])
def test_another_number_of_rows_is_remarked_on(
    tiny: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, before: int | None, now: int, told: bool
) -> None:
    first, second = make_saver(tiny, tmp_path), make_saver(tiny, tmp_path)
    first.rows, second.rows = before, now
    first.trainer.update(BATCH)
    first.save()
    assert second.restore() == 1
    assert ("has 9 rows now, and had 8 when step-000001 was written" in caplog.text) == told


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        ({"data.train": "a", "data.eval": "b"}, {"data.train": "a", "data.eval": "b"}, []),
        ({"data.train": "a", "data.eval": "b"}, {"data.train": "x", "data.eval": "y"}, ["data.train", "data.eval"]),
        ({}, {"data.train": "a"}, []),
        ({"data.train": "a"}, {}, []),
    ],
)
def test_other_data_are_remarked_on(
    tiny: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    before: dict[str, str],
    now: dict[str, str],
    told: list[str],
) -> None:
    first, second = make_saver(tiny, tmp_path), make_saver(tiny, tmp_path)
    first.digests, second.digests = before, now
    first.trainer.update(BATCH)
    first.save()
    assert second.restore() == 1
    said = [record.getMessage() for record in caplog.records if "the data have changed" in record.getMessage()]
    assert [line.partition(":")[0] for line in said] == told


def test_the_digest_leaves_out_what_does_not_change_the_training() -> None:
    same = {**CONFIG, "trainer": {"steps": 9, "save_every": 3, "keep_checkpoints": 1, "learning_rate": 1e-3}}
    assert config_digest(same) == config_digest(CONFIG)
    assert config_digest({**CONFIG, "trainer": {"learning_rate": 2e-3}}) != config_digest(CONFIG)
    assert config_digest({**CONFIG, "sft": {"steps": 3}}) == config_digest({**CONFIG, "sft": {"steps": 4}})
    falling = {"schedule": "linear", "steps": 4}
    digest = config_digest({**CONFIG, "trainer": falling})
    assert config_digest({**CONFIG, "trainer": {**falling, "steps": 9}}) != digest, "the rate falls towards the last"
    assert config_digest({**CONFIG, "trainer": {**falling, "save_every": 2}}) == digest


@pytest.mark.parametrize(
    ("step", "saved", "error", "due"),
    [
        (0, -1, None, False),
        (0, -1, ValueError(), False),
        (0, -1, asyncio.CancelledError(), True),
        (3, 2, ValueError(), True),
        (3, 3, asyncio.CancelledError(), False),
    ],
)
def test_what_the_end_of_a_run_leaves_to_save(
    tmp_path: Path, step: int, saved: int, error: BaseException | None, due: bool
) -> None:
    trainer: Any = SimpleNamespace(step=step, whole=True)
    saver = Saver(trainer, tmp_path, 2, FixedRows(4), {}, last_step=saved)
    assert saver.due(error) is due
    trainer.whole = False
    assert not saver.due(error)


@pytest.mark.parametrize(
    ("every", "seconds", "due"),
    [
        ("15min", 899, False), ("15min", 900, True), ("2h", 7199, False), ("2h", 7200, True), ("0.5s", 1, True),
        (0, 1e6, False), (2, 0, True), (3, 1e6, False),
    ],
)  # fmt: skip
def test_when_a_checkpoint_is_due(
    tiny: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | str, seconds: float, due: bool
) -> None:
    now = 5000.0
    monkeypatch.setattr("toolrl_plugin_torch.loop.saver.time.monotonic", lambda: now)
    saver = make_saver(tiny, tmp_path)
    saver.every = SftConfig(from_run="x", save_every=every).save_every
    saver.save()
    for _ in range(2):
        saver.trainer.update(BATCH)
    now += seconds
    assert saver.scheduled() is due
    saver.save()
    assert not saver.scheduled()
