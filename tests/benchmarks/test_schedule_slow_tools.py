"""The benchmark of scheduling: every mode fills its steps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.slow


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    import schedule_slow_tools

    yield schedule_slow_tools
    sys.modules.pop("schedule_slow_tools", None)


def test_every_mode_fills_its_steps(bench: Any) -> None:
    for make in bench.MODES.values():
        assert asyncio.run(bench.measure(make, 3, rows=2, scale=0.001)) > 0.0
