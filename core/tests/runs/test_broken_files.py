"""A run folder on a failing or full disk: what is broken is named, and costs nothing but itself."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from toolrl.cli.main import main
from toolrl.errors import DataError, RunFolderLostError
from toolrl.plugins.events import Events
from toolrl.protocols import StepReport
from toolrl.runs.episodes import EpisodeStore
from toolrl.runs.folder import RunFolder, describe_run
from toolrl.runs.metrics import MetricsLog
from toolrl.runs.recorder import RunRecorder
from toolrl.types import Episode

MakeRun = Callable[..., RunFolder]
MakeEpisode = Callable[..., Episode]


def fill(file: Path) -> None:
    file.write_bytes(b"\x00\xff\xfe nonsense\n{}\n[1]\n")


class FullDisk:
    """A file of which only some bytes still find room."""

    def __init__(self, file: Any, room: int) -> None:
        self._file, self._room = file, room

    def __enter__(self) -> FullDisk:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: bytes) -> None:
        self._file.write(data[: self._room])
        self._file.flush()
        raise OSError(28, "No space left on device")


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`with full(room):` appends no more than `room` bytes to a file at a time."""
    opened, state = Path.open, {"room": -1}

    class File(FullDisk):
        def write(self, data: bytes) -> Any:
            self._room = state["room"]
            return super().write(data) if self._room >= 0 else self._file.write(data)

    def open_full(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        file = opened(path, mode, *more, **options)
        return File(file, 0) if mode == "ab" or path.suffix == ".jsonl" and mode == "wb" else file

    monkeypatch.setattr(Path, "open", open_full)

    @contextlib.contextmanager
    def filled(room: int) -> Iterator[None]:
        state["room"] = room
        yield
        state["room"] = -1

    return filled


def test_lines_that_a_full_disk_had_no_room_for_are_written_with_the_next(tmp_path: Path, full: Any) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(StepReport(1, "train", {}))
    with full(10):
        for step in (2, 3):
            with pytest.raises(OSError, match="No space"):
                log.append(StepReport(step, "train", {"a": 1.0}))
    assert [line.step for line in MetricsLog(log.path).read()] == [1]
    log.append(StepReport(2, "train", {"a": 2.0}))
    log.append(StepReport(4, "train", {}))
    assert [(line.step, line.metrics.get("a")) for line in MetricsLog(log.path).read()] == [
        *((1, None), (2, 2.0), (3, 1.0), (4, None))
    ]
    with full(10), pytest.raises(OSError, match="No space"):
        log.append(StepReport(5, "train", {}))
    log.write_waiting()
    log.write_waiting()
    assert [line.step for line in MetricsLog(log.path).read()] == [1, 2, 3, 4, 5]


def test_a_torn_line_of_texts_costs_no_later_one(tmp_path: Path, full: Any) -> None:
    folder = RunFolder.create(tmp_path / "r", {}, total_steps=1)
    folder.add_tokens({1: "a"})
    with full(10), pytest.raises(OSError, match="No space"):
        folder.add_tokens({2: "a longer one"})
    folder.add_tokens({3: "c"})
    folder.add_tokens({4: "d"})
    assert folder.tokens() == {1: "a", 3: "c", 4: "d"}


@pytest.mark.parametrize("room", [0, 10])
@pytest.mark.parametrize("when", ["start", "middle", "end", "several steps"])
def test_episodes_that_a_full_disk_had_no_room_for_are_written_later(
    tmp_path: Path, make_episode: MakeEpisode, full: Any, when: str, room: int
) -> None:
    folder = RunFolder.create(tmp_path / "run", {"trainer": {"steps": 3}}, total_steps=3)
    recorder = RunRecorder(folder)
    recorder.toolrl_run_start(folder)
    full_at = {"start": {(1, 0)}, "middle": {(1, 1)}, "end": {(1, 2), (1, "end")}}
    everything = {(step, at) for step in (1, 2) for at in (0, 1, 2, "end")}
    for step in (1, 2, 3):
        for at in (0, 1, 2, "end"):
            with full(room) if (step, at) in full_at.get(when, everything) else contextlib.nullcontext():
                with contextlib.suppress(OSError):
                    if at == "end":
                        recorder.toolrl_step_end(folder, StepReport(step, "train", {}))
                    else:
                        recorder.toolrl_episode_end(folder, make_episode(10 * step + at))
    recorder.toolrl_run_end(folder, None)
    found = [(stored.step, stored.episode.index) for stored in RunFolder.open(folder.directory).episodes()]
    assert found == [(step, 10 * step + at) for step in (1, 2, 3) for at in range(3)]
    assert [line.step for line in folder.metrics_lines()] == [1, 2, 3]
    assert "unsaved_episodes" not in folder.summary()


@pytest.mark.parametrize("how", ["moved", "deleted", "moved, and another in its place"])
def test_a_run_whose_folder_is_gone_stops_and_begins_no_second_one(
    tmp_path: Path, make_episode: MakeEpisode, how: str
) -> None:
    folder = RunFolder.create(tmp_path / "run", {"trainer": {"steps": 3}}, total_steps=3)
    recorder = RunRecorder(folder)
    events = Events(folder, {"run folder": recorder})
    events.run_start()
    events.step_end(StepReport(1, "train", {}))
    folder.directory.rename(tmp_path / "elsewhere")
    if how == "deleted":
        shutil.rmtree(tmp_path / "elsewhere")
    elif how != "moved":
        RunFolder.create(tmp_path / "run", {}, total_steps=1).close()
    before = sorted(tmp_path.rglob("*"))
    events.episode_end(make_episode(0))
    with pytest.raises(RunFolderLostError, match="moved or deleted") as error:
        events.step_end(StepReport(2, "train", {}))
    events.run_end(error.value)
    assert sorted(tmp_path.rglob("*")) == before
    assert error.value.where == str(tmp_path / "run")


def test_episodes_that_never_find_room_are_counted(tmp_path: Path, make_episode: MakeEpisode, full: Any) -> None:
    folder = RunFolder.create(tmp_path / "run", {"trainer": {"steps": 3}}, total_steps=3)
    recorder = RunRecorder(folder)
    recorder.toolrl_run_start(folder)
    with full(0):
        for call in (lambda: recorder.toolrl_episode_end(folder, make_episode(0)),
                     lambda: recorder.toolrl_step_end(folder, StepReport(1, "train", {}))):  # fmt: skip
            with pytest.raises(OSError, match="No space"):
                call()
        recorder.toolrl_run_end(folder, None)
    assert folder.summary()["unsaved_episodes"] == 1
    assert "1 episodes not saved" in describe_run(folder.directory)


@pytest.mark.parametrize("name", ["summary.json", "tokens.jsonl", "config.yaml", "episodes/000001-train.jsonl.gz"])
def test_a_run_goes_on_beside_a_broken_file(
    make_run: MakeRun, make_episode: MakeEpisode, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = make_run().directory
    fill(directory / name)
    before = (directory / name).read_bytes()
    folder = RunFolder.create(directory, {"new": 1}, total_steps=3, resume=True)
    folder.rewind(2)
    recorder = RunRecorder(folder, token_pieces=lambda ids: ["x"] * len(ids))
    with caplog.at_level(logging.WARNING):
        recorder.toolrl_run_start(folder)
    assert ("summary.json: not JSON" in caplog.text) == (name == "summary.json")
    recorder.toolrl_episode_end(folder, make_episode(7))
    try:
        recorder.toolrl_step_end(folder, StepReport(3, "train", {"loss": 0.5}))
        recorder.toolrl_run_end(folder, None)
    except DataError as error:
        assert name in str(error.where)  # noqa: PT017 - what needs the file says so
    folder.close()
    metrics = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["kind"]) for line in metrics] == [(0, "eval"), (1, "train"), (2, "train"), (3, "train")]
    assert json.loads((directory / "summary.json").read_text())["resumed_at"] == [2]
    kept = {"config.yaml": "config.before-1.yaml"}.get(name, name)
    assert name == "summary.json" or (directory / kept).read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "[" * 50_000, id="nested deep"),
        pytest.param("- 1\n", id="no mapping"),
    ],
)
def test_a_config_that_can_not_be_read_is_named(text: str, make_run: MakeRun, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run().directory
    (run / "config.yaml").write_text(text)
    assert main(["status", str(run)]) == 1
    error = capsys.readouterr().err
    assert "config.yaml" in error
    assert "Traceback" not in error
