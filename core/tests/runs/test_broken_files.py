"""A run folder on a failing or full disk: what is broken is named, and costs nothing but itself."""

from __future__ import annotations

import gzip
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import main
from toolrl.errors import DataError
from toolrl.protocols import StepReport
from toolrl.runs.episodes import EpisodeStore
from toolrl.runs.folder import RunFolder
from toolrl.runs.metrics import MetricsLog
from toolrl.runs.recorder import RunRecorder
from toolrl.types import Episode

MakeRun = Callable[..., RunFolder]
MakeEpisode = Callable[..., Episode]


class FullDisk:
    """A file of which only some bytes still find room."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> None:
        self._file.write(data[: self._room])
        self._file.flush()
        raise OSError(28, "No space left on device")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Any:
    """While this is entered nothing is appended to a file but ten bytes."""
    opened = Path.open

    def open_full(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        file = opened(path, mode, *more, **options)
        return FullDisk(file, 10) if mode == "ab" else file

    class Full:
        def __enter__(self) -> None:
            monkeypatch.setattr(Path, "open", open_full)

        def __exit__(self, *error: object) -> None:
            monkeypatch.undo()

    return Full()


def test_a_torn_line_of_texts_costs_no_later_one(tmp_path: Path, full: Any) -> None:
    folder = RunFolder.create(tmp_path / "r", {}, total_steps=1)
    folder.add_tokens({1: "a"})
    with full, pytest.raises(OSError, match="No space"):
        folder.add_tokens({2: "a longer one"})
    folder.add_tokens({3: "c"})
    folder.add_tokens({4: "d"})
    assert folder.tokens() == {1: "a", 3: "c", 4: "d"}


def test_episodes_that_a_full_disk_cut_off_stay_and_later_ones_are_kept(
    tmp_path: Path, make_episode: MakeEpisode
) -> None:
    class Closing:
        """The last bytes of the file find no room when it is closed."""

        def __init__(self, file: Any) -> None:
            self._file = file

        def close(self) -> None:
            self._file.write(b'{"id": "ha')
            self._file.close()
            raise OSError(28, "No space left on device")

    store = EpisodeStore(tmp_path / "episodes")
    store.add(make_episode(0))
    store._file = Closing(store._file)  # type: ignore[assignment]
    with pytest.raises(OSError, match="No space"):
        store.close_step(1, "train")
    store.add(make_episode(1))
    assert store.close_step(2, "train") == 1
    assert [(stored.step, stored.episode.index) for stored in store.episodes()] == [(1, 0), (2, 1)]


