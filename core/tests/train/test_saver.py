"""A trainer saved and taken up again: everything is as it was, and what doesn't fit is said."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch: pip install toolrl[train]")

from toolrl.config.model import OptimizerConfig  # noqa: E402
from toolrl.errors import CheckpointError  # noqa: E402
from toolrl.testing.fakes import FakeWeights  # noqa: E402
from toolrl.train.optimizer import PolicyOptimizer  # noqa: E402
from toolrl.train.policy import Policy  # noqa: E402
from toolrl.train.saver import Saver, config_digest  # noqa: E402


class Words:
    """A tokenizer as far as a checkpoint sees it."""

    def save_pretrained(self, folder: Path) -> None:
        (folder / "tokenizer.json").write_text("{}")


@dataclass
class Trainer:
    policy: Policy
    optimizer: PolicyOptimizer
    step: int = 0

    def weights(self) -> FakeWeights:
        return FakeWeights(self.step)

    def update(self) -> None:
        ids = torch.randint(3, 97, (2, 8))
        self.policy.model(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step(1e-3)
        self.step += 1


@pytest.fixture(params=["float32", "bfloat16"])
def make(request: pytest.FixtureRequest, tiny: Any) -> Any:
    def make(seed: int = 0) -> Trainer:
        model = tiny.model(dtype=request.param, seed=seed)
        policy = Policy(model, Words(), "m", torch.device("cpu"), model.dtype)
        return Trainer(policy, PolicyOptimizer(model.named_parameters(), OptimizerConfig()))

    return make


def saver(trainer: Trainer, directory: Path, **fields: Any) -> Saver:
    return Saver(trainer, directory, **{"keep": 2, "rows_per_step": 4, "config": {"seed": 0}, **fields})


def test_a_resumed_trainer_goes_on_exactly(make: Any, tmp_path: Path) -> None:
    first = make()
    first.update()
    saver(first, tmp_path).save()
    first.update()
    second = make(seed=5)
    parameters = [parameter.data_ptr() for parameter in second.policy.model.parameters()]
    torch.manual_seed(99)
    again = saver(second, tmp_path)
    assert again.restore() == second.step == again.last_step == 1
    assert [parameter.data_ptr() for parameter in second.policy.model.parameters()] == parameters, (
        "an engine shares them"
    )
    second.update()
    for name, value in first.policy.model.state_dict().items():
        assert torch.equal(value, second.policy.model.state_dict()[name]), name


def test_where_nothing_was_saved_a_run_begins(make: Any, tmp_path: Path) -> None:
    assert saver(make(), tmp_path / "none").restore() == 0


def test_another_batch_size_is_refused(make: Any, tmp_path: Path) -> None:
    trainer = make()
    trainer.update()
    saver(trainer, tmp_path).save()
    with pytest.raises(CheckpointError, match="4 rows of data were taken in 1 steps, and the config now takes 5"):
        saver(make(), tmp_path, rows_per_step=5).restore()


def test_another_config_is_said(make: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer = make()
    trainer.update()
    saver(trainer, tmp_path).save()
    saver(make(), tmp_path).restore()
    assert not caplog.records
    saver(make(), tmp_path, config={"seed": 1}).restore()
    assert "goes on with a config that differs" in caplog.text


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"steps": 20}, True),
        ({"save_every": 5}, True),
        ({"learning_rate": 0.1}, False),
        ({"steps": 20, "schedule": "linear"}, False),
    ],
)
def test_what_decides_the_training(changed: dict[str, Any], same: bool) -> None:
    trainer = {"steps": 10, "learning_rate": 0.2, "schedule": changed.get("schedule", "constant")}
    one, other = {"trainer": trainer}, {"trainer": {**trainer, **changed}, "device": "cuda"}
    assert (config_digest(one) == config_digest(other)) is same
