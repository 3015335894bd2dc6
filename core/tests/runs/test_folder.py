"""The run folder: refused, resumed, cut off and read again."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toolrl.errors import DataError, ToolrlError
from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder, describe_run
from toolrl.runs.metrics import MetricsLog
from toolrl.runs.recorder import RunRecorder
from toolrl.types import Episode

CONFIG = {"model": {"path": "models/tiny"}}
MakeRun = Callable[..., RunFolder]
MakeEpisode = Callable[..., Episode]


def test_a_run_reads_back(make_run: MakeRun, make_episode: MakeEpisode) -> None:
    folder = RunFolder.open(make_run().directory)
    assert [(line.step, line.kind, line.episodes) for line in folder.metrics_lines()] == [
        (0, "eval", 1), (1, "train", 2), (2, "train", 2), (3, "train", 2), (3, "eval", 1),
    ]  # fmt: skip
    assert math.isnan(folder.metrics_lines("train")[0].metrics["loss"])
    stored = list(folder.episodes(kind="train", steps=[2]))
    assert [(one.step, one.kind) for one in stored] == [(2, "train")] * 2
    assert stored[0].episode == make_episode(0, round_id="train-2")
    assert len(list(folder.episodes())) == 8
    assert folder.tokens()[13] == "‹13›"
    assert folder.versions()["plugins"] == {"calculator": "0.1.0"}
    assert folder.total_steps == 3


def test_the_summary_holds_first_last_and_best(make_run: MakeRun) -> None:
    summary = make_run().summary()
    assert (summary["status"], summary["steps"], summary["episodes"]) == ("finished", 3, 8)
    accuracy = summary["metrics"]["eval"]["accuracy"]
    assert accuracy == {
        "first": 0.1, "first_step": 0, "best": 0.4, "best_step": 3, "last": 0.4, "last_step": 3,
    }  # fmt: skip
    assert summary["metrics"]["train"]["loss"]["last"] == "nan"


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), "interrupted"), (ValueError("bad"), "failed")])
def test_the_summary_says_how_a_run_ended(make_run: MakeRun, error: BaseException, status: str) -> None:
    summary = make_run(error=error).summary()
    assert summary["status"] == status
    assert summary["error"]["type"] == type(error).__name__


def test_every_line_is_strict_json(make_run: MakeRun) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} isn't JSON")

    for line in (make_run().directory / "metrics.jsonl").read_text().splitlines():
        assert json.loads(line, parse_constant=refuse)["step"] >= 0


def test_a_folder_with_a_run_is_refused(make_run: MakeRun) -> None:
    directory = make_run().directory
    with pytest.raises(ToolrlError, match="finished, 3 of 3 steps") as caught:
        RunFolder.create(directory, CONFIG, total_steps=1)
    assert "--resume" in str(caught.value)
    with pytest.raises(ToolrlError) as caught:
        RunFolder.create(directory, CONFIG, total_steps=1, resume=None)
    assert "--resume" not in str(caught.value)
    assert "--overwrite" in str(caught.value)


def test_a_run_that_ended_before_it_did_anything_is_replaced(tmp_path: Path) -> None:
    for error in (None, ValueError("no such model")):
        folder = RunFolder.create(tmp_path / "r", {"try": 1}, total_steps=1)
        if error is not None:
            RunRecorder(folder).toolrl_run_end(folder, error)
        folder.close()
    folder = RunFolder.create(tmp_path / "r", {"try": 2}, total_steps=1)
    assert folder.summary() == {}
    assert not list((tmp_path / "r").glob("config.before-*"))
    folder.episode_store.directory.mkdir()
    (folder.episode_store.directory / "open.jsonl").write_text("{}\n")
    folder.close()
    with pytest.raises(ToolrlError, match="a run here already"):
        RunFolder.create(tmp_path / "r", {"try": 3}, total_steps=1)


def test_overwrite_deletes_the_run_and_nothing_else(make_run: MakeRun) -> None:
    directory = make_run().directory
    (directory / "notes.txt").write_text("mine")
    folder = RunFolder.create(directory, CONFIG, total_steps=7, overwrite=True)
    folder.begin()
    assert folder.metrics_lines() == []
    assert list(folder.episodes()) == []
    assert folder.summary() == {}
    assert (directory / "notes.txt").read_text() == "mine"


def test_a_new_run_that_cannot_start_costs_the_old_one_nothing(make_run: MakeRun) -> None:
    directory = make_run().directory
    before = {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}
    folder = RunFolder.create(directory, {"another": 1}, total_steps=7, overwrite=True)
    RunRecorder(folder).toolrl_run_end(folder, ToolrlError("no such model"))
    assert {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()} == before
    assert not RunFolder.open(directory).is_live()


def test_a_folder_that_cannot_be_made_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ToolrlError, match="the run folder can't be written") as caught:
        RunFolder.create(tmp_path / "file" / "r", CONFIG, total_steps=1)
    assert caught.value.where == str(tmp_path / "file" / "r")
    assert "run.dir" in str(caught.value.hint)


def test_two_writers_are_refused(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "r", CONFIG, total_steps=1)
    with pytest.raises(ToolrlError, match="another process is writing"):
        RunFolder.create(tmp_path / "r", CONFIG, total_steps=1, resume=True)
    first.close()
    RunFolder.create(tmp_path / "r", CONFIG, total_steps=1, resume=True).close()


def test_resume_drops_later_steps(make_run: MakeRun, make_episode: MakeEpisode) -> None:
    directory = make_run().directory
    folder = RunFolder.create(directory, {"other": 1}, total_steps=5, resume=True)
    folder.rewind(1)
    recorder = RunRecorder(folder)
    recorder.toolrl_run_start(folder)
    for step in (2, 3):
        recorder.toolrl_episode_end(folder, make_episode(round_id=f"train-{step}"))
        recorder.toolrl_step_end(folder, StepReport(step, "train", {"reward/mean": 9.0}))
    recorder.toolrl_run_end(folder, None)
    read = RunFolder.open(directory)
    assert [(line.step, line.kind) for line in read.metrics_lines()] == [
        (0, "eval"), (1, "train"), (2, "train"), (3, "train"),
    ]  # fmt: skip
    assert [stored.step for stored in read.episodes(kind="train")] == [1, 1, 2, 3]
    assert read.summary()["resumed_at"] == [1]
    assert read.config == {"other": 1}
    assert "models/tiny" in (directory / "config.before-1.yaml").read_text()


def test_a_step_that_is_reported_again_replaces_the_first(make_run: MakeRun, make_episode: MakeEpisode) -> None:
    folder = RunFolder.create(make_run().directory, CONFIG, total_steps=3, resume=True)
    folder.rewind(3)
    recorder = RunRecorder(folder)
    recorder.toolrl_run_start(folder)
    recorder.toolrl_episode_end(folder, make_episode(5))
    recorder.toolrl_step_end(folder, StepReport(3, "eval", {"accuracy": 0.9}))
    assert [line.metrics["accuracy"] for line in folder.metrics_lines("eval")] == [0.1, 0.9]
    assert [stored.episode.index for stored in folder.episodes(kind="eval")] == [9, 5]


def test_torn_last_lines_are_left_out(make_run: MakeRun, make_episode: MakeEpisode) -> None:
    directory = make_run().directory
    for name in ("metrics.jsonl", "tokens.jsonl"):
        with (directory / name).open("ab") as file:
            file.write(b'{"step": 4, "ki')
    (directory / "episodes" / "open.jsonl").write_bytes(b'{"id": "half')
    folder = RunFolder.open(directory)
    assert len(folder.metrics_lines()) == 5
    assert len(list(folder.episodes())) == 8
    assert len(folder.tokens()) == 11
    MetricsLog(directory / "metrics.jsonl").append(StepReport(4, "train", {}))
    assert [line.step for line in folder.metrics_lines()] == [0, 1, 2, 3, 3, 4]
    folder.add_tokens({99: "new"})
    assert RunFolder.open(directory).tokens()[99] == "new"


def test_a_broken_line_in_the_middle_is_an_error_with_its_place(make_run: MakeRun) -> None:
    path = make_run().directory / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], b"{nonsense\n", *lines[1:]]))
    with pytest.raises(DataError, match=r"metrics\.jsonl:2"):
        RunFolder.open(path.parent).metrics_lines()


def test_a_kill_while_a_file_is_compressed_loses_nothing(make_run: MakeRun) -> None:
    folder = make_run()
    before = list(folder.episodes())
    (packed,) = [file.path for file in folder.episode_store.files() if (file.step, file.kind) == (2, "train")]
    import gzip

    plain = packed.with_suffix("")
    plain.write_bytes(gzip.decompress(packed.read_bytes()))
    assert list(folder.episodes()) == before  # both are there: the compressed one counts, once
    packed.unlink()
    assert list(folder.episodes()) == before  # only the other is there


def test_episodes_of_a_step_that_never_ended_know_their_step_by_their_group(
    tmp_path: Path, make_episode: MakeEpisode
) -> None:
    folder = RunFolder.create(tmp_path / "r", CONFIG, total_steps=1)
    folder.episode_store.add(make_episode(round_id="eval-4"))
    folder.episode_store.add(make_episode(round_id="other"))
    folder.close()
    assert [(one.step, one.kind) for one in RunFolder.open(folder.directory).episodes()] == [(4, "eval"), (None, None)]
    assert len(list(folder.episodes(kind="eval"))) == 1


def test_a_killed_run_reads_as_interrupted(tmp_path: Path) -> None:
    script = f"""
import os, signal, sys
from toolrl.protocols import StepReport
from toolrl.runs.folder import RunFolder
from toolrl.runs.recorder import RunRecorder
folder = RunFolder.create({str(tmp_path / "r")!r}, {{}}, total_steps=9)
recorder = RunRecorder(folder)
recorder.toolrl_run_start(folder)
recorder.toolrl_step_end(folder, StepReport(1, "train", {{"accuracy": 0.5}}))
print("ready", flush=True)
sys.stdin.read()
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    folder = RunFolder.open(tmp_path / "r")
    assert folder.summary()["status"] == "running"
    assert folder.is_live()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    summary = RunFolder.open(tmp_path / "r").summary()
    assert summary["status"] == "interrupted"
    assert summary["metrics"]["train"]["accuracy"]["last"] == 0.5


def test_without_saved_episodes_the_metrics_are_still_there(tmp_path: Path, make_episode: MakeEpisode) -> None:
    folder = RunFolder.create(tmp_path / "r", CONFIG, total_steps=1)
    recorder = RunRecorder(folder, save_episodes=False)
    recorder.toolrl_run_start(folder)
    recorder.toolrl_episode_end(folder, make_episode())
    recorder.toolrl_step_end(folder, StepReport(1, "train", {"loss": 1.0}))
    assert list(folder.episodes()) == []
    assert [line.episodes for line in folder.metrics_lines()] == [0]


def test_a_folder_with_other_things_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(ToolrlError, match="holds no run"):
            RunFolder.create(tmp_path, CONFIG, total_steps=1, overwrite=overwrite)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_resume_refuses_a_run_of_another_kind(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "r", CONFIG, total_steps=0, kind="eval")
    folder.metrics.append(StepReport(0, "eval", {"accuracy": 0.5}), 8)
    folder.write_summary({"status": "finished"})
    folder.close()
    for start in (RunFolder.create, RunFolder.check):
        arguments = {"config": CONFIG, "total_steps": 3} if start == RunFolder.create else {}
        with pytest.raises(ToolrlError, match="of the kind 'eval'"):
            start(tmp_path / "r", resume=True, overwrite=False, kind="train", **arguments)
    assert len(folder.metrics_lines()) == 1


@pytest.mark.parametrize(
    ("kind", "error", "checkpoint", "replaced"),
    [
        ("train", ValueError("bad"), False, True),
        ("train", KeyboardInterrupt(), False, True),
        ("train", ValueError("bad"), True, False),
        ("train", None, False, False),
        ("eval", KeyboardInterrupt(), False, False),
    ],
)
def test_a_training_run_without_a_checkpoint_is_replaced(
    tmp_path: Path, kind: str, error: BaseException | None, checkpoint: bool, replaced: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    folder = RunFolder.create(tmp_path / "r", CONFIG, total_steps=3, kind=kind)
    recorder = RunRecorder(folder)
    recorder.toolrl_run_start(folder)
    recorder.toolrl_step_end(folder, StepReport(1, "train", {"accuracy": 0.5}))
    with pytest.raises(ToolrlError):
        RunFolder.check(folder.directory, resume=False, overwrite=False, kind=kind)  # It is running.
    if checkpoint:  # Also one that was moved elsewhere since.
        recorder.toolrl_checkpoint_saved(folder, 1, folder.checkpoints / "step-000001")
    recorder.toolrl_run_end(folder, error)
    if not replaced:
        with pytest.raises(ToolrlError, match="a run here already"):
            RunFolder.create(folder.directory, CONFIG, total_steps=3, kind=kind)
        return
    new = RunFolder.create(folder.directory, CONFIG, total_steps=3, kind=kind)
    assert "replacing the run 'r'" in caplog.text
    assert new.metrics_lines(), "the old run stays until the new one has started"
    new.begin()
    assert not new.metrics_lines()
