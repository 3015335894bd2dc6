"""What the loop asks of a trainer; it knows no tensor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from toolrl.protocols import WeightSource


class Trainer(Protocol):
    """Holds model, optimizer and step counter, which always belong together."""

    step: int
    """Complete steps; the version of the weights."""
    whole: bool
    """False while the weights are those of a step half done: no checkpoint then."""

    def update(self, batch: Sequence[Any]) -> dict[str, float]:
        """One step's update from its groups, or from a batch of demonstrations: advances `step`, gives metrics."""
        ...

    def weights(self) -> WeightSource:
        """The current weights."""
        ...

    def gather_state(self, directory: Path) -> Any:
        """What all ranks have to write together, for `save`. All ranks call it; `directory` is that of checkpoints."""
        ...

    def save(self, folder: Path, gathered: Any) -> None:
        """Write model, tokenizer and state into a checkpoint's folder. The first rank calls it."""
        ...

    def saved_bytes(self) -> int:
        """About how many bytes `save` writes."""
        ...

    def load(self, folder: Path, step: int) -> None:
        """Take up what `save` wrote at this step. All ranks call it. Raises CheckpointError."""
        ...
