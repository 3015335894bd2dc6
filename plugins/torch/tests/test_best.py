"""The best checkpoint: which it is, that it stays, and what a kill at any moment leaves of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toolrl.config.model import Config, TrainerFrame
from toolrl.errors import CheckpointError
from toolrl.loop.best import Best, better, read_best, write_best
from toolrl.loop.checkpoints import find_checkpoint, list_checkpoints
from toolrl_plugin_torch.loop.batches import FixedRows
from toolrl_plugin_torch.loop.saver import Saver, config_digest
from toolrl_testing.fakes import FakeTrainer


@pytest.fixture
def trainer() -> FakeTrainer:
    return FakeTrainer()


@pytest.mark.parametrize(
    ("best", "step", "value", "found"),
    [
        (None, 2, 0.25, True),
        (None, 0, 0.25, False),  # the start of a run is in no checkpoint
        (Best(2, "accuracy", 0.25), 4, 0.5, True),
        (Best(2, "accuracy", 0.25), 4, 0.25, False),
        (Best(2, "accuracy", 0.25), 4, float("nan"), False),
        (None, 4, float("inf"), False),
    ],
)
def test_what_is_better(best: Best | None, step: int, value: float, found: bool) -> None:
    result = better(best, step, "accuracy", {"accuracy": value})
    assert result == (Best(step, "accuracy", value) if found else None)


def test_the_metric_has_a_name_in_the_config() -> None:
    assert [TrainerFrame(keep_best=value).best_by for value in (False, True, "eval/reward/mean", "pass@4")] == [
        *(None, "accuracy", "reward/mean", "pass@4")
    ]
    frame = {"model": {"path": "m"}, "environments": {"default": {}}, "trainer": {"keep_best": True}}
    with pytest.raises(ValueError, match="keep_best: needs evaluations, and data.eval names no data set"):
        Config.model_validate(frame)
    assert config_digest({"trainer": {"keep_best": True}}) == config_digest({"trainer": {"keep_best": False}})


def test_the_record_and_the_link_are_replaced_together(tmp_path: Path) -> None:
    for step in (2, 4):
        (tmp_path / f"step-{step:06d}").mkdir()
        write_best(tmp_path, Best(step, "accuracy", step / 8))
        assert read_best(tmp_path) == Best(step, "accuracy", step / 8)
        assert (tmp_path / "best").resolve() == tmp_path / f"step-{step:06d}"
    write_best(tmp_path, None)
    assert read_best(tmp_path) is None
    assert {path.name for path in tmp_path.iterdir()} == {"step-000002", "step-000004"}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"step": "x", "metric": "a", "value": 1}', "\x00"])
def test_a_record_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "best.json").write_text(text)
    with pytest.raises(CheckpointError, match="record of the best checkpoint can't be read"):
        read_best(tmp_path)


# A run's saver.


@pytest.fixture
def saver(trainer: Any, tmp_path: Path) -> Any:
    """Makes savers of one run; `saver.run(values)` has each value be the evaluation of a step."""

    def make(keep: int = 1) -> Saver:
        return Saver(type(trainer)(), tmp_path / "checkpoints", keep, FixedRows(2), {}, best_by="accuracy")

    def run(saver: Saver, values: list[float]) -> None:
        for value in values:
            saver.trainer.step += 1
            step = saver.trainer.step
            if saver.judge(step, {"accuracy": value}):
                saver.save()
            saver.save()

    make.run = run  # type: ignore[attr-defined]
    return make


def names(saver: Saver) -> list[str]:
    return [path.name for path in list_checkpoints(saver.directory)]


def test_the_best_stays_beside_the_last(saver: Any) -> None:
    one = saver()
    saver.run(one, [0.25, 0.5, 0.25, 0.5])
    assert names(one) == ["step-000002", "step-000004"]
    assert read_best(one.directory) == Best(2, "accuracy", 0.5)
    saver.run(one, [0.75, 0.5])
    assert names(one) == ["step-000005", "step-000006"]
    for name, step in (("best", 5), ("last", 6), ("5", 5), ("step-000006", 6)):
        assert find_checkpoint(one.directory, name).name == f"step-{step:06d}"


def test_a_run_that_goes_on_knows_its_best(saver: Any) -> None:
    one = saver()
    saver.run(one, [0.5, 0.25])
    two = saver()
    assert two.restore() == 2
    assert not two.judge(3, {"accuracy": 0.5})
    assert two.judge(3, {"accuracy": 0.6})


def test_a_kill_between_the_checkpoint_and_its_record_is_made_up_for(
    saver: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class KilledError(BaseException):
        pass

    def killed(*args: Any) -> None:
        raise KilledError

    one = saver()
    saver.run(one, [0.25])
    one.trainer.step = 2
    assert one.judge(2, {"accuracy": 0.5})
    with monkeypatch.context() as patch:
        patch.setattr("toolrl_plugin_torch.loop.saver.write_best", killed)
        with pytest.raises(KilledError):
            one.save()
    assert names(one) == ["step-000001", "step-000002"], "the old best stays until the new one is on record"
    two = saver()
    assert two.restore() == 2
    two.recall({1: {"accuracy": 0.25}, 2: {"accuracy": 0.5}})
    assert read_best(two.directory) == Best(2, "accuracy", 0.5)
    assert names(two) == ["step-000002"]


def test_a_run_that_goes_on_without_keeping_the_best_loses_none(saver: Any) -> None:
    one = saver()
    saver.run(one, [0.5, 0.25])
    two = saver()
    two.best_by = None
    two.restore()
    saver.run(two, [0.75, 0.75])
    assert names(two) == ["step-000001", "step-000004"]
    assert find_checkpoint(two.directory, "best").name == "step-000001"


def test_the_best_is_checked_before_it_is_used(saver: Any) -> None:
    one = saver()
    saver.run(one, [0.5, 0.25])
    weights = one.directory / "step-000001" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointError, match=r"model\.safetensors has .* bytes"):
        find_checkpoint(one.directory, "best")
    assert json.loads((one.directory / "best.json").read_text())["step"] == 1
