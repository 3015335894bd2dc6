"""Runs with the engine through the command line: weights that change from step to step, and an update gone wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from vllm_help import needs_vllm, run_config

from toolrl.types import Episode, Score

pytestmark = [needs_vllm, pytest.mark.timeout(600)]


def config(folder: Path) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_config(folder, reward="format")))
    return path


@pytest.fixture(autouse=True)
def rewards_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model makes no calls, whose form could be judged."""
    from toolrl.builtin.rewards import FormatReward

    async def score(self: FormatReward, episode: Episode) -> Score:
        return Score(float(sum(episode.ids) % 5))

    monkeypatch.setattr(FormatReward, "score", score)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "runs" / "r" / "metrics.jsonl").read_text().splitlines()]


def test_each_step_samples_from_the_weights_of_the_step_before(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from toolrl.cli.main import main

    assert main(["train", str(config(tmp_path))]) == 0
    steps = lines(tmp_path)
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(0.0 < line["logprob_mismatch/max"] < 1e-4 for line in steps)
    (saved,) = (tmp_path / "runs" / "r" / "checkpoints").iterdir()
    weights = [load_file(folder / "model.safetensors") for folder in (tmp_path / "model", saved)]
    assert all(not weights[0][name].equal(weights[1][name]) for name in weights[0] if "proj" in name)


@pytest.fixture
def one_tensor_wrong(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """At the second update one matrix isn't what it should be."""
    import torch

    from toolrl_plugin_torch.policy import PolicyWeights

    right, times = PolicyWeights.tensors, []

    def wrong(self: PolicyWeights, *, merged: bool = True) -> Iterator[tuple[str, Any]]:
        times.append(1)
        for name, tensor in right(self, merged=merged):
            bad = len(times) == 3 and name == "model.layers.1.mlp.down_proj.weight"
            yield name, tensor + 0.01 * torch.randn_like(tensor) if bad else tensor

    monkeypatch.setattr(PolicyWeights, "tensors", wrong)
    yield
    assert len(times) == 3, "the run went on"


@pytest.mark.usefixtures("one_tensor_wrong")
def test_a_wrong_update_stops_the_run_and_what_was_trained_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from toolrl.cli.main import main

    assert main(["train", str(config(tmp_path))]) != 0
    said = capsys.readouterr().err
    assert "after the update to version 2 vLLM doesn't have the trainer's weights: 1 of " in said
    assert "Traceback" not in said
    summary = json.loads((tmp_path / "runs" / "r" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert [line["step"] for line in lines(tmp_path)] == [1, 2]
    assert [path.name for path in (tmp_path / "runs" / "r" / "checkpoints").iterdir()] == ["step-000002"]
