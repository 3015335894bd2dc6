"""The comparison with TRL as a test: loss and gradients equal TRL's."""

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
