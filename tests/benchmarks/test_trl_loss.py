"""The comparison with TRL as a test: loss and gradients equal TRL's, and a wrong loss is told apart."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="the comparison needs TRL: pip install 'trl>=1.16'")

BENCH = runpy.run_path(str(Path(__file__).with_name("bench_trl_loss.py")))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("trl") / "model"
    BENCH["write_model"](folder)
    return folder


@pytest.mark.parametrize("case", BENCH["CASES"], ids=lambda case: case.name)
def test_equals_trl(case: Any, model: Path, tmp_path: Path) -> None:
    outcome = BENCH["compare"](case, model, tmp_path)
    assert outcome.gradient_error <= 1e-5, outcome
    assert outcome.loss_error <= 1e-5, outcome
    assert (outcome.clipped > 0) == case.off_policy


def test_the_comparison_tells_a_difference(model: Path, tmp_path: Path) -> None:
    """The same data under another objective is far outside of the tolerance."""
    data = BENCH["make_data"]()
    BENCH["add_logprobs"](data, model)
    make = BENCH["Case"]
    _, plain, _ = BENCH["our_step"](make("grpo", 0.04, off_policy=True, correction=False), data, model)
    _, theirs = BENCH["trl_step"](make("grpo", 0.04, off_policy=True), data, model, tmp_path)
    greatest = max(gradient.abs().max() for gradient in theirs.values())
    assert max((plain[name] - theirs[name]).abs().max() for name in theirs) / greatest > 1e-3
