"""A trainer without tensors: what the loop sees of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


class FakeTrainer:
    """Writes the files of a checkpoint, and says which it took up."""

    def __init__(self) -> None:
        self.step = 0
        self.whole = True
        self.loaded: Path | None = None

    def gather_state(self, directory: Path) -> None:
        return None

    def save(self, folder: Path, gathered: Any) -> None:
        (folder / "config.json").write_text("{}")
        (folder / "tokenizer.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(bytes(range(250)))
        (folder / "trainer" / "state.pt").write_bytes(bytes(range(200)))

    def saved_bytes(self) -> int:
        return 2**19

    def load(self, folder: Path, step: int) -> None:
        self.loaded, self.step = folder, step


@pytest.fixture
def trainer() -> FakeTrainer:
    return FakeTrainer()
