"""The benchmark of growing sizes does each of its parts, at small ones."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("toolrl_plugin_transformers", reason="needs the embedded engine")
pytest.importorskip("toolrl_plugin_qwen", reason="needs the parser hermes")

pytestmark = pytest.mark.slow


def test_every_part_is_timed_at_growing_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import bench_scale

    try:
        logging.disable(logging.WARNING)
        found: dict[str, Any] = {
            part.name: bench_scale.timed(replace(part, sizes=part.sizes[:2]), 1)
            for part in bench_scale.parts(bench_scale.Trainers(tmp_path), quick=True)
        }
    finally:
        logging.disable(logging.NOTSET)
        for name in ("bench_scale", "scripted"):
            sys.modules.pop(name, None)
    assert {"rollout", "recording", "credit and batches", "update"} <= set(found)
    for figures in found.values():
        assert len(figures["sizes"]) == len(figures["seconds"]) == 2
        assert figures["sizes"][0] < figures["sizes"][1]


def test_a_slope_is_that_of_the_line_through_the_logarithms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import bench_scale

    try:
        found = bench_scale.slopes([1, 10, 100], [1.0, 10.0, 1000.0])
    finally:
        for name in ("bench_scale", "scripted"):
            sys.modules.pop(name, None)
    assert found["slope"] == pytest.approx(1.5)
    assert found["neighbours"] == pytest.approx([1.0, 2.0])
    assert found["steepest"] == pytest.approx(2.0)
